// Registration tables. One array load, one tag compare and one overflow-safe range check per
// access.
#include "core/memory_registry.h"

#include <atomic>
#include <utility>

#include "base/exhaustion.h"

namespace verbena::core {

MemoryRegistry::MemoryRegistry(uint64_t secret) : tags_(secret ^ 0xA5A5A5A5DEADBEEFu) {
  Prng keys(secret);
  for (auto& k : round_keys_) k = static_cast<uint32_t>(keys.next());
}

namespace {

// One Feistel round's mixing of a 12-bit half.
uint32_t mix(uint32_t half, uint32_t key) {
  uint32_t x = (half ^ key) * 0x9E3779B1u;
  x ^= x >> 15;
  x *= 0x85EBCA77u;
  return (x ^ key >> 16) >> 20;
}

}  // namespace

uint32_t MemoryRegistry::encrypt(uint32_t index) const {
  uint32_t left = index >> 12, right = index & 0xFFF;
  for (const uint32_t key : round_keys_) {
    const uint32_t next = left ^ mix(right, key);
    left = right;
    right = next & 0xFFF;
  }
  return left << 12 | right;
}

uint32_t MemoryRegistry::decrypt(uint32_t code) const {
  uint32_t left = code >> 12, right = code & 0xFFF;
  for (int i = 3; i >= 0; --i) {
    const uint32_t previous = right ^ mix(left, round_keys_[i]);
    right = left;
    left = previous & 0xFFF;
  }
  return left << 12 | right;
}

const MemoryRegistry::Entry* MemoryRegistry::find(uint32_t key) const {
  const uint32_t index = index_of(key);
  if (index >= entries_.size()) return nullptr;
  const Entry& e = entries_[index];
  if (e.kind == Kind::Free || e.tag != static_cast<uint8_t>(key)) return nullptr;
  return &e;
}

// Ignores the tag: the owner's key may be newer or older than the entry's, depending on binds that
// are queued or were flushed.
MemoryRegistry::Entry* MemoryRegistry::find_window(uint32_t key) {
  const uint32_t index = index_of(key);
  if (index >= entries_.size()) return nullptr;
  Entry& e = entries_[index];
  return is_window(e.kind) ? &e : nullptr;
}

Result<uint32_t> MemoryRegistry::take_slot(Kind kind) {
  size_t& count = is_window(kind) ? windows_ : regions_;
  if (count >= (is_window(kind) ? kMaxWindows : kMaxRegions)) {
    return Error{ENOMEM, "too many memory regions or windows (see max_mr, max_mw)"};
  }
  uint32_t index;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else {
    index = static_cast<uint32_t>(entries_.size());
    reserve_ahead(free_, entries_.size() + 1);  // release_slot() does not allocate
    entries_.emplace_back();
  }
  Entry fresh;
  fresh.kind = kind;
  // Never the slot's last tag: a key that was just released must not become valid again at once.
  fresh.tag = static_cast<uint8_t>(entries_[index].tag + 1 + tags_.below(255));
  entries_[index] = fresh;
  ++count;
  return index;
}

void MemoryRegistry::release_slot(uint32_t index) {
  --(is_window(entries_[index].kind) ? windows_ : regions_);
  entries_[index].kind = Kind::Free;
  free_.push_back(index);
}

namespace {

Status check_region(const RegionInfo& region) {
  if ((region.access & (kRemoteWrite | kRemoteAtomic)) != 0 && (region.access & kLocalWrite) == 0) {
    return Error{EINVAL, "remote write or atomic access also needs IBV_ACCESS_LOCAL_WRITE"};
  }
  const MemoryBacking* const backing = region.backing;
  if (backing != nullptr && (backing->copy_in == nullptr) != (backing->copy_out == nullptr)) {
    return Error{EINVAL, "memory is copied in both directions or in none"};
  }
  if (region.iova + region.length < region.iova) {
    return Error{EINVAL, "iova + length wraps around 2^64"};
  }
  return {};
}

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

// Other processes cannot access the memory, or not without asking the owner.
bool needs_owner(const MemoryBacking* backing) {
  return backing != nullptr && (backing->reachable != nullptr || backing->is_copied());
}

MemoryArea reachable_at(const RegionInfo& region, uint64_t address, uint64_t length,
                        uint32_t access) {
  std::byte* const at = memory_at(region, address);
  if (region.backing == nullptr) [[likely]]
    return {at, nullptr};
  return ask_owner(*region.backing, at, length, access);
}

}  // namespace

void MemoryRegistry::prepare_copies(const RegionInfo& region) {
  if (region.backing != nullptr && region.backing->is_copied()) {
    staging_.resize(wire::kMaxPayloadBytes);
  }
}

Result<uint32_t> MemoryRegistry::add_region(const RegionInfo& region) {
  const Status checked = check_region(region);
  if (!checked.ok()) return checked.error();
  prepare_copies(region);
  auto slot = take_slot(Kind::Region);
  if (!slot.ok()) return slot;
  static_cast<RegionInfo&>(entries_[slot.value()]) = region;
  expose(slot.value());
  return key_of(slot.value());
}

// Exposes regions with remote access, except those that other processes cannot access.
void MemoryRegistry::expose(uint32_t index) {
  if (exposure_ == nullptr) return;
  const Entry& e = entries_[index];
  const uint32_t access = e.access & (kRemoteWrite | kRemoteRead);
  const uint32_t key = key_of(index);
  if (access == 0 || e.length == 0 || needs_owner(e.backing)) return exposure_->withdraw(key);
  exposure_->expose({.key = key,
                     .pd = e.pd,
                     .base = reinterpret_cast<uintptr_t>(e.base),
                     .iova = e.iova,
                     .length = e.length,
                     .access = access});
}

Result<uint32_t> MemoryRegistry::add_null_region(uint32_t pd) {
  if (null_memory_ == nullptr) null_memory_ = std::make_unique<NullMemory>();
  auto slot = take_slot(Kind::Null);
  if (!slot.ok()) return slot;
  Entry& e = entries_[slot.value()];
  e.pd = pd;
  e.length = UINT64_MAX;
  e.access = kLocalWrite;
  return key_of(slot.value());
}

Status MemoryRegistry::change_region(uint32_t key, const RegionInfo& region) {
  Entry* e = find(key);
  if (e == nullptr || e->kind != Kind::Region) return Error{EINVAL, "no such memory region"};
  if (e->bound_windows != 0) return Error{EBUSY, "memory windows are still bound to this region"};
  const Status checked = check_region(region);
  if (!checked.ok()) return checked;
  prepare_copies(region);
  static_cast<RegionInfo&>(*e) = region;
  expose(static_cast<uint32_t>(e - entries_.data()));
  return {};
}

const RegionInfo* MemoryRegistry::region_of(uint32_t lkey) const {
  const Entry* e = find(lkey);
  return e != nullptr && (e->kind == Kind::Region || e->kind == Kind::Null) ? e : nullptr;
}

bool MemoryRegistry::is_window(uint32_t key) const {
  const Entry* e = find(key);
  return e != nullptr && is_window(e->kind);
}

Status MemoryRegistry::remove_region(uint32_t key) {
  Entry* e = find(key);
  if (e == nullptr || (e->kind != Kind::Region && e->kind != Kind::Null)) {
    return Error{EINVAL, "no such memory region"};
  }
  if (e->bound_windows != 0) return Error{EBUSY, "memory windows are still bound to this region"};
  if (exposure_ != nullptr) exposure_->withdraw(key);
  release_slot(static_cast<uint32_t>(e - entries_.data()));
  return {};
}

Result<uint32_t> MemoryRegistry::add_window(uint32_t pd, WindowType type) {
  auto slot = take_slot(type == WindowType::Type1 ? Kind::Window1 : Kind::Window2);
  if (!slot.ok()) return slot;
  entries_[slot.value()].pd = pd;
  return key_of(slot.value());
}

Status MemoryRegistry::remove_window(uint32_t rkey) {
  Entry* e = find_window(rkey);
  if (e == nullptr) return Error{EINVAL, "no such memory window"};
  unbind(*e);
  release_slot(static_cast<uint32_t>(e - entries_.data()));
  return {};
}

void MemoryRegistry::unbind(Entry& window) {
  if (!window.bound) return;
  --entries_[window.region_index].bound_windows;
  window.bound = false;
  if (window.kind == Kind::Window2) --bound_type2_;
}

namespace {
// The rights that a window may grant to peers.
constexpr uint32_t kWindowAccess =
    kRemoteWrite | kRemoteRead | kRemoteAtomic | kZeroBased | kFlushGlobal | kFlushPersistent;
}  // namespace

bool MemoryRegistry::bind_window(uint32_t pd, wire::Qpn qpn, uint32_t window_rkey,
                                 const WindowBinding& b) {
  Entry* w = find_window(window_rkey);
  if (w == nullptr || w->pd != pd) return false;
  // A type 2 window is bound once and then invalidated; a type 1 window may be bound again at once.
  if (w->kind == Kind::Window2 && w->bound) return false;
  if (w->kind == Kind::Window2 && (b.new_rkey & ~0xFFu) != (window_rkey & ~0xFFu)) return false;
  if (b.length == 0) {                           // a bind of length 0 unbinds a type 1 window
    if (w->kind == Kind::Window2) return false;  // that one is invalidated
    unbind(*w);
  } else {
    Entry* region = find(b.region_lkey);
    if (region == nullptr || region->kind != Kind::Region || region->pd != pd) return false;
    if ((region->access & kWindowBind) == 0) return false;
    // A window grants nothing to its owner, so kLocalWrite is accepted and has no effect.
    const uint32_t access = b.access & ~uint32_t{kLocalWrite};
    if ((access & ~kWindowAccess) != 0) return false;
    if ((access & (kRemoteWrite | kRemoteAtomic)) != 0 && (region->access & kLocalWrite) == 0) {
      return false;
    }
    const uint32_t flushes = access & (kFlushGlobal | kFlushPersistent);
    if ((region->access & flushes) != flushes) return false;
    if (!covers(*region, b.address, b.length)) return false;
    unbind(*w);
    w->base = memory_at(*region, b.address);
    w->length = b.length;
    w->iova = (access & kZeroBased) != 0 ? 0 : b.address;
    w->access = access;
    w->backing = region->backing;
    w->qpn = qpn;
    w->region_index = static_cast<uint32_t>(region - entries_.data());
    w->bound = true;
    ++region->bound_windows;
    if (w->kind == Kind::Window2) ++bound_type2_;
  }
  w->tag = static_cast<uint8_t>(b.new_rkey);
  return true;
}

bool MemoryRegistry::invalidate(uint32_t pd, wire::Qpn qpn, uint32_t rkey) {
  Entry* e = find(rkey);
  if (e == nullptr || e->kind != Kind::Window2 || e->pd != pd || !e->bound || e->qpn != qpn) {
    return false;
  }
  unbind(*e);
  return true;
}

void MemoryRegistry::unbind_windows_of(wire::Qpn qpn) {
  for (size_t i = 0; bound_type2_ != 0 && i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if (e.kind == Kind::Window2 && e.bound && e.qpn == qpn) unbind(e);
  }
}

const MemoryRegistry::Entry* MemoryRegistry::find_granting(uint32_t key, uint32_t pd, wire::Qpn qpn,
                                                           uint32_t access) const {
  const Entry* e = find(key);
  if (e == nullptr || e->pd != pd || (e->access & access) != access) return nullptr;
  if (e->kind == Kind::Null) return nullptr;
  if (e->kind != Kind::Region && !e->bound) return nullptr;
  if (e->kind == Kind::Window2 && e->qpn != qpn) return nullptr;
  return e;
}

MemoryRegistry::FlushResult MemoryRegistry::flush(uint32_t key, uint32_t pd, wire::Qpn qpn,
                                                  uint64_t address, uint64_t length, bool all,
                                                  uint32_t access) const {
  const Entry* e = find_granting(key, pd, qpn, access);
  if (e == nullptr || (!all && !covers(*e, address, length))) return FlushResult::Denied;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if ((access & kFlushPersistent) == 0 || (e->backing == nullptr || e->backing->persist == nullptr))
    return FlushResult::Done;
  const bool kept = all ? e->backing->persist(e->base, e->length)
                        : e->backing->persist(memory_at(*e, address), length);
  return kept ? FlushResult::Done : FlushResult::Failed;
}

bool MemoryRegistry::grants(uint32_t key, uint32_t pd, wire::Qpn qpn, uint64_t address,
                            uint64_t length, uint32_t access) const {
  const Entry* e = find_granting(key, pd, qpn, access);
  return e != nullptr && covers(*e, address, length);
}

MemoryArea MemoryRegistry::resolve(uint32_t key, uint32_t pd, wire::Qpn qpn, uint64_t address,
                                   uint64_t length, uint32_t access) const {
  const Entry* e = find_granting(key, pd, qpn, access);
  if (e == nullptr || !covers(*e, address, length)) return {};
  return reachable_at(*e, address, length, access);
}

MemoryArea MemoryRegistry::resolve_local(uint32_t lkey, uint32_t pd, uint64_t address,
                                         uint64_t length, uint32_t access) const {
  const Entry* e = find(lkey);
  if (e == nullptr || e->pd != pd || (e->access & access) != access) return {};
  if (e->kind == Kind::Null) [[unlikely]] {
    if (length > kNullBytes) return {};
    return {
        (access & kLocalWrite) != 0 ? null_memory_->discarded.data() : null_memory_->zeros.data(),
        nullptr};
  }
  if (e->kind != Kind::Region || !covers(*e, address, length)) return {};
  return reachable_at(*e, address, length, access);
}

}  // namespace verbena::core
