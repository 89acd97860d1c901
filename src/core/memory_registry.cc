// Registration tables. One array load, one tag compare and one overflow-safe range check per
// access.
#include "core/memory_registry.h"

#include <utility>

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
  const uint32_t index = decrypt(key >> 8);
  if (index >= entries_.size()) return nullptr;
  const Entry& e = entries_[index];
  if (e.kind == Kind::Free || e.tag != static_cast<uint8_t>(key)) return nullptr;
  return &e;
}

// By its owner, who may be ahead of or behind the tag: binds on their way or flushed change it or
// not.
MemoryRegistry::Entry* MemoryRegistry::find_window(uint32_t key) {
  const uint32_t index = decrypt(key >> 8);
  if (index >= entries_.size()) return nullptr;
  Entry& e = entries_[index];
  return e.kind == Kind::Window1 || e.kind == Kind::Window2 ? &e : nullptr;
}

Result<uint32_t> MemoryRegistry::take_slot() {
  uint32_t index;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (entries_.size() < kMaxEntries) {
    index = static_cast<uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    return Error{ENOMEM, "too many memory regions and windows (see max_mr)"};
  }
  Entry fresh;
  // Never the tag this slot had last: a key that was just given up must not work again at once.
  fresh.tag = static_cast<uint8_t>(entries_[index].tag + 1 + tags_.below(255));
  entries_[index] = fresh;
  ++live_;
  return index;
}

void MemoryRegistry::release_slot(uint32_t index) {
  entries_[index].kind = Kind::Free;
  free_.push_back(index);
  --live_;
}

Result<uint32_t> MemoryRegistry::add_region(uint32_t pd, std::byte* base, uint64_t length,
                                            uint64_t iova, uint32_t access) {
  if ((access & (kRemoteWrite | kRemoteAtomic)) != 0 && (access & kLocalWrite) == 0) {
    return Error{EINVAL, "remote write or atomic access also needs IBV_ACCESS_LOCAL_WRITE"};
  }
  if (iova + length < iova) return Error{EINVAL, "iova + length wraps around 2^64"};
  auto slot = take_slot();
  if (!slot.ok()) return slot;
  Entry& e = entries_[slot.value()];
  e.kind = Kind::Region;
  e.pd = pd;
  e.base = base;
  e.length = length;
  e.iova = iova;
  e.access = access;
  return key_of(slot.value());
}

Status MemoryRegistry::remove_region(uint32_t key) {
  Entry* e = find(key);
  if (e == nullptr || e->kind != Kind::Region) return Error{EINVAL, "no such memory region"};
  if (e->bound_windows != 0) return Error{EBUSY, "memory windows are still bound to this region"};
  release_slot(static_cast<uint32_t>(e - entries_.data()));
  return {};
}

Result<uint32_t> MemoryRegistry::add_window(uint32_t pd, WindowType type) {
  auto slot = take_slot();
  if (!slot.ok()) return slot;
  Entry& e = entries_[slot.value()];
  e.kind = type == WindowType::Type1 ? Kind::Window1 : Kind::Window2;
  e.pd = pd;
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
}

bool MemoryRegistry::bind_window(uint32_t pd, wire::Qpn qpn, uint32_t window_rkey,
                                 const WindowBinding& b) {
  Entry* w = find_window(window_rkey);
  if (w == nullptr || w->pd != pd) return false;
  // A type 2 window is bound once and then invalidated; a type 1 window may be bound again at once.
  if (w->kind == Kind::Window2 && w->bound) return false;
  if (w->kind == Kind::Window2 && (b.new_rkey & ~0xFFu) != (window_rkey & ~0xFFu)) return false;
  if (b.length == 0) {  // binding nothing is how a type 1 window is unbound
    unbind(*w);
  } else {
    Entry* region = find(b.region_lkey);
    if (region == nullptr || region->kind != Kind::Region || region->pd != pd) return false;
    if ((region->access & kWindowBind) == 0) return false;
    if ((b.access & (kRemoteWrite | kRemoteAtomic)) != 0 && (region->access & kLocalWrite) == 0) {
      return false;
    }
    if (b.address < region->iova || b.length > region->length ||
        b.address - region->iova > region->length - b.length) {
      return false;
    }
    unbind(*w);
    w->base = region->base + (b.address - region->iova);
    w->length = b.length;
    w->iova = (b.access & kZeroBased) != 0 ? 0 : b.address;
    w->access = b.access;
    w->qpn = qpn;
    w->region_index = static_cast<uint32_t>(region - entries_.data());
    w->bound = true;
    ++region->bound_windows;
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

std::byte* MemoryRegistry::resolve(uint32_t key, uint32_t pd, wire::Qpn qpn, uint64_t address,
                                   uint64_t length, uint32_t access) const {
  const Entry* e = find(key);
  if (e == nullptr || e->pd != pd || (e->access & access) != access) return nullptr;
  if (e->kind != Kind::Region && !e->bound) return nullptr;
  if (e->kind == Kind::Window2 && e->qpn != qpn) return nullptr;
  if (address < e->iova || length > e->length || address - e->iova > e->length - length) {
    return nullptr;
  }
  return e->base + (address - e->iova);
}

std::byte* MemoryRegistry::resolve_local(uint32_t lkey, uint32_t pd, uint64_t address,
                                         uint64_t length, uint32_t access) const {
  const Entry* e = find(lkey);
  if (e == nullptr || e->kind != Kind::Region || e->pd != pd || (e->access & access) != access) {
    return nullptr;
  }
  if (address < e->iova || length > e->length || address - e->iova > e->length - length) {
    return nullptr;
  }
  return e->base + (address - e->iova);
}

}  // namespace verbena::core
