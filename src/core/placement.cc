// Gather and scatter, with the order of visibility that spinning programs rely on.
#include "core/placement.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

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

[[gnu::cold, gnu::noinline]] void copy_in(const MemoryArea& to, std::span<const std::byte> from) {
  to.copier->copy_in(to.at, from);
}

}  // namespace

void place(const MemoryArea& to, std::span<const std::byte> from, bool ends_message) {
  if (to.copier != nullptr) [[unlikely]]
    return copy_in(to, from);
  if (ends_message) return place_last_word_last(to.at, from);
  std::memcpy(to.at, from.data(), from.size());
}

void place(MemoryArea to, PayloadReader& from, uint32_t bytes) {
  while (bytes > 0) {
    const std::span<const std::byte> part = from.next(bytes);
    place(to, part, false);
    to.at += part.size();
    bytes -= static_cast<uint32_t>(part.size());
  }
}

namespace {

bool is_within(const std::byte* at, std::span<const std::byte> memory) {
  const std::less_equal<> is_not_behind;
  return is_not_behind(memory.data(), at) && !is_not_behind(memory.data() + memory.size(), at);
}

// Atomic among the requests of this engine. Nothing excludes the device between the two copies, so
// a word that stays as it is is not written.
template <typename Change>
uint64_t change_copy(const MemoryArea& at, Change change) {
  uint64_t before = 0;
  at.copier->copy_out(std::as_writable_bytes(std::span(&before, 1)), at.at);
  const uint64_t after = change(before);
  if (after != before) at.copier->copy_in(at.at, std::as_bytes(std::span(&after, 1)));
  return before;
}

std::atomic_ref<uint64_t> word_at(const MemoryArea& area) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(area.at));
}

}  // namespace

uint64_t fetch_add(const MemoryArea& at, uint64_t add) {
  if (at.copier == nullptr) return word_at(at).fetch_add(add);
  return change_copy(at, [&](uint64_t before) { return before + add; });
}

uint64_t compare_swap(const MemoryArea& at, uint64_t compare, uint64_t swap) {
  if (at.copier == nullptr) {
    word_at(at).compare_exchange_strong(compare, swap);
    return compare;
  }
  return change_copy(at, [&](uint64_t before) { return before == compare ? swap : before; });
}

void store(const MemoryArea& at, uint64_t value) {
  if (at.copier == nullptr) return word_at(at).store(value);
  at.copier->copy_in(at.at, std::as_bytes(std::span(&value, 1)));
}

namespace {

// False if memory that must be copied is more than a packet's payload, or is to be written.
[[gnu::cold, gnu::noinline]] bool append_copy(const MemoryView& memory, const MemoryArea& area,
                                              uint32_t bytes, Gather& out, uint32_t access) {
  size_t used = 0;
  for (const auto& span : out.view()) {
    if (is_within(span.data(), memory.staging())) used += span.size();
  }
  const std::span<std::byte> free = memory.staging().subspan(used);
  if (bytes > free.size() || (access & kLocalWrite) != 0) return false;
  area.copier->copy_out(free.first(bytes), area.at);
  out.spans[out.count++] = {free.data(), bytes};
  return true;
}

// The only place where registered memory becomes part of a packet.
bool append(const MemoryView& memory, MemoryArea area, uint32_t bytes, Gather& out,
            uint32_t access) {
  if (area.copier != nullptr) [[unlikely]]
    return append_copy(memory, area, bytes, out, access);
  out.spans[out.count++] = {area.at, bytes};
  return true;
}

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

bool gather(const MemoryView& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
            uint32_t length, Gather& out, uint32_t access) {
  out.count = 0;
  return for_each_area(sges, offset, length, [&](const Sge& sge, uint32_t skip, uint32_t n) {
    const MemoryArea area = memory.resolve_local(sge.lkey, pd, sge.address + skip, n, access);
    return area != nullptr && append(memory, area, n, out, access);
  });
}

bool gather_remote(const MemoryView& memory, uint32_t rkey, uint32_t pd, wire::Qpn qpn,
                   uint64_t address, uint32_t length, Gather& out) {
  out.count = 0;
  const MemoryArea area = memory.resolve(rkey, pd, qpn, address, length, kRemoteRead);
  return area != nullptr && append(memory, area, length, out, 0);
}

namespace {

struct WritableArea {
  MemoryArea to;
  uint32_t bytes;
};
struct WritableAreas {
  std::array<WritableArea, kMaxSges> areas;
  size_t count = 0;
  std::span<const WritableArea> view() const { return {areas.data(), count}; }
};

// False if an lkey does not grant the access.
bool resolve_writable(const MemoryView& memory, uint32_t pd, std::span<const Sge> sges,
                      uint32_t offset, size_t length, WritableAreas& out) {
  return for_each_area(
      sges, offset, static_cast<uint32_t>(length), [&](const Sge& sge, uint32_t skip, uint32_t n) {
        const MemoryArea p = memory.resolve_local(sge.lkey, pd, sge.address + skip, n, kLocalWrite);
        if (p == nullptr) return false;
        out.areas[out.count++] = {p, n};
        return true;
      });
}

[[gnu::noinline]] bool scatter_to_list(const MemoryView& memory, uint32_t pd,
                                       std::span<const Sge> sges, uint32_t offset,
                                       std::span<const std::byte> from, bool ends_message) {
  WritableAreas areas;
  if (!resolve_writable(memory, pd, sges, offset, from.size(), areas)) return false;
  for (size_t i = 0; i < areas.count; ++i) {
    const auto& [to, bytes] = areas.areas[i];
    place(to, from.first(bytes), ends_message && i + 1 == areas.count);
    from = from.subspan(bytes);
  }
  return true;
}

}  // namespace

bool scatter(const MemoryView& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
             std::span<const std::byte> from, bool ends_message) {
  if (sges.size() != 1 || from.empty()) [[unlikely]]
    return scatter_to_list(memory, pd, sges, offset, from, ends_message);
  const Sge& sge = sges.front();
  const MemoryArea to =
      memory.resolve_local(sge.lkey, pd, sge.address + offset, from.size(), kLocalWrite);
  if (to == nullptr) return false;
  place(to, from, ends_message);
  return true;
}

bool scatter(const MemoryView& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
             const wire::PacketRun& from) {
  WritableAreas areas;
  if (!resolve_writable(memory, pd, sges, offset, from.size() * from.payload_bytes(), areas))
    return false;
  PayloadReader payload(from);
  for (const WritableArea& area : areas.view()) place(area.to, payload, area.bytes);
  return true;
}

}  // namespace verbena::core
