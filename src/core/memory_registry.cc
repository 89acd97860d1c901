// Registration: changes of the tables, under their lock.
#include "core/memory_registry.h"

#include <algorithm>
#include <utility>

#include "base/exhaustion.h"
#include "base/spin_lock.h"

namespace verbena::core {
namespace {

// One Feistel round's mixing of a 12-bit half.
uint32_t mix(uint32_t half, uint32_t key) {
  uint32_t x = (half ^ key) * 0x9E3779B1u;
  x ^= x >> 15;
  x *= 0x85EBCA77u;
  return (x ^ key >> 16) >> 20;
}

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

// Other processes cannot access the memory, or not without asking the owner.
bool needs_owner(const MemoryBacking* backing) {
  return backing != nullptr && (backing->reachable != nullptr || backing->is_copied());
}

constexpr Error kNoRegion{EINVAL, "no such memory region"};
constexpr Error kBound{EBUSY, "memory windows are still bound to this region"};

}  // namespace

MemoryRegistry::MemoryRegistry(uint64_t secret, LookupBarrier* barrier)
    : barrier_(barrier), tags_(secret ^ 0xA5A5A5A5DEADBEEFu) {
  Prng keys(secret);
  for (auto& k : round_keys_) k = static_cast<uint32_t>(keys.next());
}

MemoryRegistry::~MemoryRegistry() {
  for (auto& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);
}

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

// --- entries -------------------------------------------------------------------------------------

const MemoryRegistry::Entry* MemoryRegistry::place_of(uint32_t code) const {
  const uint32_t index = decrypt(code);
  if (index / kEntriesPerChunk >= kChunks) return nullptr;
  const Chunk* const chunk = chunks_[index / kEntriesPerChunk].load(std::memory_order_acquire);
  return chunk != nullptr ? &(*chunk)[index % kEntriesPerChunk] : nullptr;
}

MemoryRegistry::Binding MemoryRegistry::Entry::load_binding() const {
  Binding copy;
  for (SpinWait wait; !binding->load(copy);) wait.pause();
  return copy;
}

std::optional<uint32_t> MemoryRegistry::index_of(uint32_t key) const {
  const uint32_t index = decrypt(key >> 8);
  return index < entries_ ? std::optional(index) : std::nullopt;
}

// The entry of a key that is valid now, of a region or of a window.
std::optional<uint32_t> MemoryRegistry::find(uint32_t key, bool region) const {
  const auto index = index_of(key);
  if (!index) return std::nullopt;
  const Entry& e = at(*index);
  const Kind kind = e.kind();
  if (kind == Kind::Free || is_window(kind) == region) return std::nullopt;
  const uint8_t tag = region ? e.tag() : e.load_binding().tag;
  return tag == static_cast<uint8_t>(key) ? index : std::nullopt;
}

// The caller fills the entry and publishes it.
Result<uint32_t> MemoryRegistry::take_place(Kind kind) {
  size_t& count = is_window(kind) ? windows_ : regions_;
  if (count >= (is_window(kind) ? kMaxWindows : kMaxRegions)) {
    return Error{ENOMEM, "too many memory regions or windows (see max_mr, max_mw)"};
  }
  uint32_t index = 0;
  if (free_.empty()) {
    index = entries_;
    auto& chunk = chunks_[index / kEntriesPerChunk];
    if (chunk.load(std::memory_order_relaxed) == nullptr) {
      chunk.store(new Chunk, std::memory_order_release);
    }
    reserve_ahead(free_, entries_ + 1);  // release_place() does not allocate
  } else {
    index = free_.back();
  }
  if (is_window(kind) && at(index).binding == nullptr) {
    at(index).binding = std::make_unique<BindingCell>();
  }
  // Nothing fails from here on.
  if (free_.empty()) {
    ++entries_;
  } else {
    free_.pop_back();
  }
  ++count;
  return index;
}

void MemoryRegistry::publish(uint32_t index, Kind kind) {
  Entry& e = at(index);
  // Never the place's last tag: a key that was just released must not become valid again at once.
  const auto tag = static_cast<uint8_t>(e.tag() + 1 + tags_.below(255));
  if (is_window(kind)) {
    Binding unbound;
    unbound.tag = tag;
    e.binding->store(unbound);
  }
  e.kind_and_tag.store(static_cast<uint16_t>(tag << 8 | static_cast<uint8_t>(kind)),
                       std::memory_order_release);
}

// No new lookup finds the entry. It keeps its tag.
void MemoryRegistry::withdraw(uint32_t index) {
  Entry& e = at(index);
  e.kind_and_tag.store(static_cast<uint16_t>(e.tag() << 8), std::memory_order_release);
}

void MemoryRegistry::release_place(uint32_t index, Kind kind) {
  --(is_window(kind) ? windows_ : regions_);
  free_.push_back(index);
}

// --- regions -------------------------------------------------------------------------------------

Result<uint32_t> MemoryRegistry::add_region(const RegionInfo& region) {
  const Status checked = check_region(region);
  if (!checked.ok()) return checked.error();
  const SpinLock::Guard guard(lock_);
  auto place = take_place(Kind::Region);
  if (!place.ok()) return place;
  const uint32_t index = place.value();
  static_cast<RegionInfo&>(at(index)) = region;
  publish(index, Kind::Region);
  expose(index, at(index).tag());
  return key_of(index, at(index).tag());
}

// Exposes regions with remote access, except those that other processes cannot access.
void MemoryRegistry::expose(uint32_t index, uint8_t tag) {
  const Entry& e = at(index);
  const uint32_t access = e.access & (kRemoteWrite | kRemoteRead);
  const uint32_t key = key_of(index, tag);
  const bool is_exposed = access != 0 && e.length != 0 && !needs_owner(e.backing);
  for (wire::Exposure* const exposure : exposures_) {
    if (!is_exposed) {
      exposure->withdraw(key);
      continue;
    }
    exposure->expose({.key = key,
                      .pd = e.pd,
                      .base = reinterpret_cast<uintptr_t>(e.base),
                      .iova = e.iova,
                      .length = e.length,
                      .access = access});
  }
}

void MemoryRegistry::add_exposure(wire::Exposure* exposure) {
  const SpinLock::Guard guard(lock_);
  exposures_.push_back(exposure);
  for (uint32_t index = 0; index < entries_; ++index) {
    if (at(index).kind() == Kind::Region) expose(index, at(index).tag());
  }
}

void MemoryRegistry::remove_exposure(wire::Exposure* exposure) {
  const SpinLock::Guard guard(lock_);
  std::erase(exposures_, exposure);
}

Result<uint32_t> MemoryRegistry::add_null_region(uint32_t pd) {
  const SpinLock::Guard guard(lock_);
  if (null_memory_ == nullptr) null_memory_ = std::make_unique<NullMemory>();
  auto place = take_place(Kind::Null);
  if (!place.ok()) return place;
  const uint32_t index = place.value();
  static_cast<RegionInfo&>(at(index)) = {pd, nullptr, UINT64_MAX, 0, kLocalWrite, nullptr};
  publish(index, Kind::Null);
  return key_of(index, at(index).tag());
}

Status MemoryRegistry::change_region(uint32_t key, const RegionInfo& region) {
  const Status checked = check_region(region);
  std::optional<uint32_t> index;
  {
    const SpinLock::Guard guard(lock_);
    index = find(key, true);
    if (!index || at(*index).kind() != Kind::Region) return kNoRegion;
    if (at(*index).bound_windows != 0) return kBound;
    if (!checked.ok()) return checked;
    withdraw(*index);
  }
  await_lookups();
  const SpinLock::Guard guard(lock_);
  Entry& e = at(*index);
  static_cast<RegionInfo&>(e) = region;
  const auto tag = static_cast<uint8_t>(key);
  e.kind_and_tag.store(static_cast<uint16_t>(tag << 8 | static_cast<uint8_t>(Kind::Region)),
                       std::memory_order_release);
  expose(*index, tag);
  return {};
}

std::optional<RegionInfo> MemoryRegistry::region_of(uint32_t lkey) const {
  const SpinLock::Guard guard(lock_);
  const auto index = find(lkey, true);
  if (!index) return std::nullopt;
  return at(*index);
}

bool MemoryRegistry::is_window(uint32_t key) const {
  const SpinLock::Guard guard(lock_);
  return find(key, false).has_value();
}

size_t MemoryRegistry::live() const {
  const SpinLock::Guard guard(lock_);
  return regions_ + windows_;
}

Status MemoryRegistry::remove_region(uint32_t key) {
  std::optional<uint32_t> index;
  Kind kind{};
  {
    const SpinLock::Guard guard(lock_);
    index = find(key, true);
    if (!index) return kNoRegion;
    if (at(*index).bound_windows != 0) return kBound;
    kind = at(*index).kind();
    for (wire::Exposure* const exposure : exposures_) exposure->withdraw(key);
    withdraw(*index);
  }
  await_lookups();
  const SpinLock::Guard guard(lock_);
  release_place(*index, kind);
  return {};
}

// --- windows -------------------------------------------------------------------------------------

Result<uint32_t> MemoryRegistry::add_window(uint32_t pd, WindowType type) {
  const Kind kind = type == WindowType::Type1 ? Kind::Window1 : Kind::Window2;
  const SpinLock::Guard guard(lock_);
  auto place = take_place(kind);
  if (!place.ok()) return place;
  const uint32_t index = place.value();
  static_cast<RegionInfo&>(at(index)) = {pd, nullptr, 0, 0, 0, nullptr};
  publish(index, kind);
  return key_of(index, at(index).tag());
}

// Ignores the tag: the owner's key may be newer or older than the entry's, depending on binds that
// are queued or were flushed.
Status MemoryRegistry::remove_window(uint32_t rkey) {
  std::optional<uint32_t> index;
  Kind kind{};
  {
    const SpinLock::Guard guard(lock_);
    index = index_of(rkey);
    if (!index || !is_window(at(*index).kind())) return Error{EINVAL, "no such memory window"};
    Entry& e = at(*index);
    kind = e.kind();
    Binding binding = e.load_binding();
    unbind(e, binding);
    // The entry keeps the latest tag, which the next key of this place must not have.
    e.kind_and_tag.store(static_cast<uint16_t>(binding.tag << 8), std::memory_order_release);
  }
  await_lookups();
  const SpinLock::Guard guard(lock_);
  release_place(*index, kind);
  return {};
}

void MemoryRegistry::unbind(Entry& window, Binding& binding) {
  if (!binding.bound) return;
  --at(binding.region_index).bound_windows;
  binding.bound = false;
  if (window.kind() == Kind::Window2) --bound_type2_;
  window.binding->store(binding);
}

namespace {
// The rights that a window may grant to peers.
constexpr uint32_t kWindowAccess =
    kRemoteWrite | kRemoteRead | kRemoteAtomic | kZeroBased | kFlushGlobal | kFlushPersistent;

bool may_bind(const RegionInfo& region, uint32_t access, const WindowBinding& b) {
  if ((region.access & kWindowBind) == 0 || (access & ~kWindowAccess) != 0) return false;
  if ((access & (kRemoteWrite | kRemoteAtomic)) != 0 && (region.access & kLocalWrite) == 0) {
    return false;
  }
  const uint32_t flushes = access & (kFlushGlobal | kFlushPersistent);
  if ((region.access & flushes) != flushes) return false;
  return b.address >= region.iova && b.length <= region.length &&
         b.address - region.iova <= region.length - b.length;
}
}  // namespace

bool MemoryRegistry::bind_window(const MemoryView& engine, uint32_t pd, wire::Qpn qpn,
                                 uint32_t window_rkey, const WindowBinding& b) {
  bool was_bound = false;
  {
    const SpinLock::Guard guard(lock_);
    const auto index = index_of(window_rkey);
    if (!index || !is_window(at(*index).kind()) || at(*index).pd != pd) return false;
    Entry& w = at(*index);
    const bool is_type2 = w.kind() == Kind::Window2;
    Binding binding = w.load_binding();
    was_bound = binding.bound;
    // A type 2 window is bound once and then invalidated; a type 1 window may be bound again at
    // once.
    if (is_type2 && (was_bound || (b.new_rkey & ~0xFFu) != (window_rkey & ~0xFFu))) return false;
    if (b.length == 0) {           // a bind of length 0 unbinds a type 1 window
      if (is_type2) return false;  // that one is invalidated
      unbind(w, binding);
    } else {
      const auto region_index = find(b.region_lkey, true);
      if (!region_index) return false;
      Entry& region = at(*region_index);
      // A window grants nothing to its owner, so kLocalWrite is accepted and has no effect.
      const uint32_t access = b.access & ~uint32_t{kLocalWrite};
      if (region.kind() != Kind::Region || region.pd != pd || !may_bind(region, access, b)) {
        return false;
      }
      unbind(w, binding);
      // As integers: an on-demand region may begin at address 0.
      binding.base = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(region.base) +
                                                  (b.address - region.iova));
      binding.length = b.length;
      binding.iova = (access & kZeroBased) != 0 ? 0 : b.address;
      binding.access = access;
      binding.backing = region.backing;
      binding.qpn = qpn;
      binding.region_index = *region_index;
      binding.bound = true;
      ++region.bound_windows;
      if (is_type2) ++bound_type2_;
    }
    binding.tag = static_cast<uint8_t>(b.new_rkey);
    w.binding->store(binding);
  }
  // Every queue pair may use a type 1 window, so other engines may be about to access the memory
  // that it was bound to.
  if (was_bound) await_lookups(&engine);
  return true;
}

bool MemoryRegistry::invalidate(uint32_t pd, wire::Qpn qpn, uint32_t rkey) {
  const SpinLock::Guard guard(lock_);
  const auto index = find(rkey, false);
  if (!index) return false;
  Entry& e = at(*index);
  Binding binding = e.load_binding();
  if (e.kind() != Kind::Window2 || e.pd != pd || !binding.bound || binding.qpn != qpn) return false;
  unbind(e, binding);
  return true;
}

void MemoryRegistry::unbind_windows_of(wire::Qpn qpn) {
  const SpinLock::Guard guard(lock_);
  for (uint32_t index = 0; bound_type2_ != 0 && index < entries_; ++index) {
    Entry& e = at(index);
    if (e.kind() != Kind::Window2) continue;
    Binding binding = e.load_binding();
    if (binding.bound && binding.qpn == qpn) unbind(e, binding);
  }
}

}  // namespace verbena::core
