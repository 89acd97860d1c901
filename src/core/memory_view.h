// MemoryView: an engine's view of the memory registry. Every access of a peer or of a work request
// goes through resolve(); nothing else in the engine turns an address from outside into a pointer.
// Lookups take no lock and write nothing that other engines read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/memory_registry.h"

namespace verbena::core {

class MemoryView {
 public:
  explicit MemoryView(MemoryRegistry& registry) : registry_(registry) {}
  MemoryView(const MemoryView&) = delete;
  MemoryView& operator=(const MemoryView&) = delete;

  MemoryRegistry& registry() const { return registry_; }

  // See MemoryRegistry.
  bool bind_window(uint32_t pd, wire::Qpn qpn, uint32_t window_rkey, const WindowBinding& binding) {
    return registry_.bind_window(*this, pd, qpn, window_rkey, binding);
  }
  bool invalidate(uint32_t pd, wire::Qpn qpn, uint32_t rkey) {
    return registry_.invalidate(pd, qpn, rkey);
  }

  enum class FlushResult : uint8_t { Done, Denied, Failed };
  // Flushes [address, address + length), or the whole region of the key.
  FlushResult flush(uint32_t key, uint32_t pd, wire::Qpn qpn, uint64_t address, uint64_t length,
                    bool all, uint32_t access) const;

  // Whether the key grants the range, without checking whether the memory is accessible.
  bool grants(uint32_t key, uint32_t pd, wire::Qpn qpn, uint64_t address, uint64_t length,
              uint32_t access) const;

  // The memory behind [address, address + length), if `key` names it within `pd` (for windows: and
  // `qpn`) and grants all of `access`. Null otherwise. `length` is between 1 and the largest
  // payload of a packet.
  MemoryArea resolve(uint32_t key, uint32_t pd, wire::Qpn qpn, uint64_t address, uint64_t length,
                     uint32_t access) const;

  // For work requests of the owner: regions only, no windows.
  MemoryArea resolve_local(uint32_t lkey, uint32_t pd, uint64_t address, uint64_t length,
                           uint32_t access) const;

  // Ordinary memory for copies of outgoing payload: as much as a packet has. Allocated on first
  // use.
  std::span<std::byte> staging() const;

 private:
  using Entry = MemoryRegistry::Entry;
  using Kind = MemoryRegistry::Kind;

  const Entry* place_of(uint32_t key) const {
    const uint32_t code = key >> 8;
    Known& known = known_[code % known_.size()];
    if (known.code != code) [[unlikely]]
      return look_up(code, known);
    return known.place;
  }
  // A program uses few keys at a time.
  struct Known {
    uint32_t code = UINT32_MAX;  // not a code: codes have 24 bits
    const Entry* place = nullptr;
  };
  [[gnu::cold, gnu::noinline]] const Entry* look_up(uint32_t code, Known& known) const;
  const RegionInfo* find_granting(uint32_t key, uint32_t pd, wire::Qpn qpn, uint32_t access,
                                  RegionInfo& of_window) const;
  static const RegionInfo* window_granting(const Entry& e, Kind kind, uint32_t key, wire::Qpn qpn,
                                           RegionInfo& of_window);

  MemoryRegistry& registry_;
  mutable std::array<Known, 16> known_;
  mutable std::vector<std::byte> staging_;
};

}  // namespace verbena::core
