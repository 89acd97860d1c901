// Gather and scatter, with the order of visibility that spinning programs rely on.
#include "core/placement.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/bytes.h"

namespace verbena::core {

namespace {

template <typename Word>
void store_whole(std::byte* to, const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  __atomic_store_n(reinterpret_cast<Word*>(to), word, __ATOMIC_RELEASE);
}

}  // namespace

void place_last_word_last(std::byte* to, std::span<const std::byte> from) {
  if (from.empty()) return;
  const size_t width = last_word_bytes(reinterpret_cast<uintptr_t>(to), from.size());
  const size_t body = from.size() - width;
  if (body != 0) std::memcpy(to, from.data(), body);
  switch (width) {
    case 8:
      return store_whole<uint64_t>(to + body, from.data() + body);
    case 4:
      return store_whole<uint32_t>(to + body, from.data() + body);
    case 2:
      return store_whole<uint16_t>(to + body, from.data() + body);
    default:
      return store_whole<uint8_t>(to + body, from.data() + body);
  }
}

namespace {

// Calls visit(sge, offset within it, bytes) for each memory area of [offset, offset + length).
template <typename Visit>
bool for_each_area(std::span<const Sge> sges, uint32_t offset, uint32_t length, Visit visit) {
  for (const Sge& sge : sges) {
    if (length == 0) return true;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const uint32_t n = std::min(length, sge.length - offset);
    if (!visit(sge, offset, n)) return false;
    offset = 0;
    length -= n;
  }
  return length == 0;
}

}  // namespace

bool gather(const MemoryRegistry& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
            uint32_t length, Gather& out, uint32_t access) {
  out.count = 0;
  return for_each_area(sges, offset, length, [&](const Sge& sge, uint32_t skip, uint32_t n) {
    const std::byte* p = memory.resolve_local(sge.lkey, pd, sge.address + skip, n, access);
    if (p == nullptr) return false;
    out.spans[out.count++] = {p, n};
    return true;
  });
}

bool scatter(const MemoryRegistry& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
             std::span<const std::byte> from, bool ends_message) {
  struct Area {
    std::byte* to;
    uint32_t bytes;
  };
  std::array<Area, kMaxSges> areas;
  size_t count = 0;
  const bool granted = for_each_area(sges, offset, static_cast<uint32_t>(from.size()),
                                     [&](const Sge& sge, uint32_t skip, uint32_t n) {
                                       std::byte* p = memory.resolve_local(
                                           sge.lkey, pd, sge.address + skip, n, kLocalWrite);
                                       if (p == nullptr) return false;
                                       areas[count++] = {p, n};
                                       return true;
                                     });
  if (!granted) return false;
  for (size_t i = 0; i < count; ++i) {
    if (ends_message && i + 1 == count) {
      place_last_word_last(areas[i].to, from.first(areas[i].bytes));
    } else {
      std::memcpy(areas[i].to, from.data(), areas[i].bytes);
    }
    from = from.subspan(areas[i].bytes);
  }
  return true;
}

}  // namespace verbena::core
