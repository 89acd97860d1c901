// Gather and scatter, with the order of visibility that spinning programs rely on.
#include "core/placement.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace verbena::core {

void place_last_byte_last(std::byte* to, std::span<const std::byte> from) {
  if (from.empty()) return;
  if (from.size() == 8 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
    // The common flag-and-counter update, in one store.
    uint64_t value;
    std::memcpy(&value, from.data(), 8);
    __atomic_store_n(reinterpret_cast<uint64_t*>(to), value, __ATOMIC_RELEASE);
    return;
  }
  const size_t body = from.size() - 1;
  std::memcpy(to, from.data(), body);
  __atomic_store_n(reinterpret_cast<unsigned char*>(to + body),
                   std::to_integer<unsigned char>(from[body]), __ATOMIC_RELEASE);
}

namespace {

// Calls visit(sge, offset within it, bytes) for each piece of [offset, offset + length).
template <typename Visit>
bool for_each_piece(std::span<const Sge> sges, uint32_t offset, uint32_t length, Visit visit) {
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
  return for_each_piece(sges, offset, length, [&](const Sge& sge, uint32_t skip, uint32_t n) {
    const std::byte* p = memory.resolve_local(sge.lkey, pd, sge.address + skip, n, access);
    if (p == nullptr) return false;
    out.spans[out.count++] = {p, n};
    return true;
  });
}

bool scatter(const MemoryRegistry& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
             std::span<const std::byte> from, bool ends_message) {
  struct Piece {
    std::byte* to;
    uint32_t bytes;
  };
  std::array<Piece, kMaxSges> pieces;
  size_t count = 0;
  const bool granted = for_each_piece(sges, offset, static_cast<uint32_t>(from.size()),
                                      [&](const Sge& sge, uint32_t skip, uint32_t n) {
                                        std::byte* p = memory.resolve_local(
                                            sge.lkey, pd, sge.address + skip, n, kLocalWrite);
                                        if (p == nullptr) return false;
                                        pieces[count++] = {p, n};
                                        return true;
                                      });
  if (!granted) return false;
  for (size_t i = 0; i < count; ++i) {
    if (ends_message && i + 1 == count) {
      place_last_byte_last(pieces[i].to, from.first(pieces[i].bytes));
    } else {
      std::memcpy(pieces[i].to, from.data(), pieces[i].bytes);
    }
    from = from.subspan(pieces[i].bytes);
  }
  return true;
}

}  // namespace verbena::core
