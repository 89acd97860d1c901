// MemoryRegistry: which bytes may be touched, by whom, how. Every access of a peer or of a work
// request goes through resolve(); nothing else in the engine turns an address from outside into a
// pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "core/types.h"

namespace verbena::core {

enum class WindowType : uint8_t { Type1 = 1, Type2 = 2 };

class MemoryRegistry {
 public:
  // `secret` makes keys unguessable; it comes from the operating system, or from a simulator's
  // seed.
  explicit MemoryRegistry(uint64_t secret);

  // Registers [base, base + length), which peers address from `iova`. Returns the key, lkey and
  // rkey alike.
  Result<uint32_t> add_region(uint32_t pd, std::byte* base, uint64_t length, uint64_t iova,
                              uint32_t access);
  // EBUSY while windows are bound to it.
  Status remove_region(uint32_t key);

  Result<uint32_t> add_window(uint32_t pd, WindowType type);
  Status remove_window(uint32_t rkey);

  // Type 1 and 2 binding, by work request. On success the window answers to binding.new_rkey.
  bool bind_window(uint32_t pd, wire::Qpn qpn, uint32_t window_rkey, const WindowBinding& binding);

  // A type 2 window goes back to unbound. Regions made by reg_mr are not open to invalidation.
  bool invalidate(uint32_t pd, wire::Qpn qpn, uint32_t rkey);

  // The memory behind [address, address + length), if `key` names it within `pd` (for windows: and
  // `qpn`) and grants all of `access`. Null otherwise. length > 0.
  std::byte* resolve(uint32_t key, uint32_t pd, wire::Qpn qpn, uint64_t address, uint64_t length,
                     uint32_t access) const;

  // For work requests of the owner: windows do not count.
  std::byte* resolve_local(uint32_t lkey, uint32_t pd, uint64_t address, uint64_t length,
                           uint32_t access) const;

  size_t live() const { return live_; }
  static constexpr size_t kMaxEntries = size_t{1} << 20;

 private:
  enum class Kind : uint8_t { Free, Region, Window1, Window2 };
  struct Entry {
    std::byte* base = nullptr;
    uint64_t iova = 0;
    uint64_t length = 0;
    uint32_t pd = 0;
    uint32_t access = 0;
    uint32_t bound_windows = 0;  // regions
    uint32_t region_index = 0;   // windows
    wire::Qpn qpn;               // type 2 windows: the one queue pair that may use it
    Kind kind = Kind::Free;
    bool bound = false;  // windows: refers to a region now
    uint8_t tag = 0;     // the key's low byte
  };

  // A keyed permutation of 24 bits: the key's upper part tells nothing about the index.
  uint32_t encrypt(uint32_t index) const;
  uint32_t decrypt(uint32_t code) const;
  uint32_t key_of(uint32_t index) const { return encrypt(index) << 8 | entries_[index].tag; }
  const Entry* find(uint32_t key) const;
  Entry* find(uint32_t key) { return const_cast<Entry*>(std::as_const(*this).find(key)); }
  Entry* find_window(uint32_t key);
  Result<uint32_t> take_slot();
  void release_slot(uint32_t index);
  void unbind(Entry& window);

  uint32_t round_keys_[4];
  Prng tags_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
  size_t live_ = 0;
};

}  // namespace verbena::core
