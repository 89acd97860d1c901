// Lookups. One load of the entry, one compare of kind and tag, and one overflow-safe range check.
#include "core/memory_view.h"

#include <atomic>

namespace verbena::core {
namespace {

bool covers(const RegionInfo& region, uint64_t address, uint64_t length) {
  return address >= region.iova && length <= region.length &&
         address - region.iova <= region.length - length;
}

std::byte* memory_at(const RegionInfo& region, uint64_t address) {
  // As integers: an on-demand region may begin at address 0.
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(region.base) +
                                      (address - region.iova));
}

[[gnu::cold, gnu::noinline]] MemoryArea ask_owner(const MemoryBacking& backing, std::byte* at,
                                                  uint64_t length, uint32_t access) {
  const bool write = (access & (kLocalWrite | kRemoteWrite | kRemoteAtomic)) != 0;
  if (backing.reachable != nullptr && !backing.reachable(at, length, write)) return {};
  return {at, backing.is_copied() ? &backing : nullptr};
}

MemoryArea reachable_at(const RegionInfo& region, uint64_t address, uint64_t length,
                        uint32_t access) {
  std::byte* const at = memory_at(region, address);
  if (region.backing == nullptr) [[likely]]
    return {at, nullptr};
  return ask_owner(*region.backing, at, length, access);
}

}  // namespace

const MemoryRegistry::Entry* MemoryView::look_up(uint32_t code, Known& known) const {
  const Entry* const place = registry_.place_of(code);
  if (place != nullptr) known = {code, place};
  return place;
}

// The binding as a region: the part of the region that the window grants.
[[gnu::cold, gnu::noinline]] const RegionInfo* MemoryView::window_granting(const Entry& e,
                                                                           Kind kind, uint32_t key,
                                                                           wire::Qpn qpn,
                                                                           RegionInfo& of_window) {
  const MemoryRegistry::Binding b = e.load_binding();
  if (!b.bound || b.tag != static_cast<uint8_t>(key)) return nullptr;
  if (kind == Kind::Window2 && b.qpn != qpn) return nullptr;
  of_window = {e.pd, b.base, b.length, b.iova, b.access, b.backing};
  return &of_window;
}

const RegionInfo* MemoryView::find_granting(uint32_t key, uint32_t pd, wire::Qpn qpn,
                                            uint32_t access, RegionInfo& of_window) const {
  const Entry* const e = place_of(key);
  if (e == nullptr) return nullptr;
  const uint16_t kind_and_tag = e->kind_and_tag.load(std::memory_order_acquire);
  const Kind kind = Entry::kind_of(kind_and_tag);
  const RegionInfo* found = e;
  if (kind != Kind::Region) [[unlikely]] {
    if (!MemoryRegistry::is_window(kind)) return nullptr;
    found = window_granting(*e, kind, key, qpn, of_window);
    if (found == nullptr) return nullptr;
  } else if (Entry::tag_of(kind_and_tag) != static_cast<uint8_t>(key)) {
    return nullptr;
  }
  return found->pd == pd && (found->access & access) == access ? found : nullptr;
}

MemoryView::FlushResult MemoryView::flush(uint32_t key, uint32_t pd, wire::Qpn qpn,
                                          uint64_t address, uint64_t length, bool all,
                                          uint32_t access) const {
  RegionInfo of_window;
  const RegionInfo* e = find_granting(key, pd, qpn, access, of_window);
  if (e == nullptr || (!all && !covers(*e, address, length))) return FlushResult::Denied;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if ((access & kFlushPersistent) == 0 || (e->backing == nullptr || e->backing->persist == nullptr))
    return FlushResult::Done;
  const bool kept = all ? e->backing->persist(e->base, e->length)
                        : e->backing->persist(memory_at(*e, address), length);
  return kept ? FlushResult::Done : FlushResult::Failed;
}

bool MemoryView::grants(uint32_t key, uint32_t pd, wire::Qpn qpn, uint64_t address, uint64_t length,
                        uint32_t access) const {
  RegionInfo of_window;
  const RegionInfo* e = find_granting(key, pd, qpn, access, of_window);
  return e != nullptr && covers(*e, address, length);
}

MemoryArea MemoryView::resolve(uint32_t key, uint32_t pd, wire::Qpn qpn, uint64_t address,
                               uint64_t length, uint32_t access) const {
  RegionInfo of_window;
  const RegionInfo* e = find_granting(key, pd, qpn, access, of_window);
  if (e == nullptr || !covers(*e, address, length)) return {};
  return reachable_at(*e, address, length, access);
}

MemoryArea MemoryView::resolve_local(uint32_t lkey, uint32_t pd, uint64_t address, uint64_t length,
                                     uint32_t access) const {
  const Entry* const e = place_of(lkey);
  if (e == nullptr) return {};
  const uint16_t kind_and_tag = e->kind_and_tag.load(std::memory_order_acquire);
  const Kind kind = Entry::kind_of(kind_and_tag);
  if ((kind != Kind::Region && kind != Kind::Null) ||
      Entry::tag_of(kind_and_tag) != static_cast<uint8_t>(lkey) || e->pd != pd ||
      (e->access & access) != access) {
    return {};
  }
  if (kind == Kind::Null) [[unlikely]] {
    MemoryRegistry::NullMemory& memory = registry_.null_memory();
    if (length > memory.kBytes) return {};
    return {(access & kLocalWrite) != 0 ? memory.discarded.data() : memory.zeros.data(), nullptr};
  }
  if (!covers(*e, address, length)) return {};
  return reachable_at(*e, address, length, access);
}

std::span<std::byte> MemoryView::staging() const {
  if (staging_.empty()) staging_.resize(wire::kMaxPayloadBytes);
  return staging_;
}

}  // namespace verbena::core
