// MemoryRegistry: memory regions and windows, with their keys and access rights. Every access of a
// peer or of a work request goes through resolve(); nothing else in the engine turns an address
// from outside into a pointer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "core/types.h"
#include "wire/one_sided.h"

namespace verbena::core {

enum class WindowType : uint8_t { Type1 = 1, Type2 = 2 };

// Functions of the region's owner that need system calls, which the engine does not make. A
// null function is not called.
struct MemoryBacking {
  // Whether the bytes can be accessed now: on-demand regions are not pinned and may have holes.
  bool (*reachable)(const std::byte* at, uint64_t bytes, bool write) = nullptr;
  // Makes the bytes persistent before it returns. False if that failed.
  bool (*persist)(std::byte* at, uint64_t bytes) = nullptr;
  // Both or none: the CPU cannot access the bytes, such as those of a GPU. Copies between them and
  // ordinary memory, complete before they return.
  void (*copy_in)(std::byte* to, std::span<const std::byte> from) = nullptr;
  void (*copy_out)(std::span<std::byte> to, const std::byte* from) = nullptr;

  bool is_copied() const { return copy_in != nullptr; }
};

// Registered memory, resolved. Only placement.h accesses the bytes.
struct MemoryArea {  // not initialized by default: there are arrays of it on the hot path
  std::byte* at;
  const MemoryBacking* copier;  // null: the CPU can access the bytes

  bool operator==(const std::byte* other) const { return at == other; }
};

// A region as its owner registered it.
struct RegionInfo {
  uint32_t pd = 0;
  std::byte* base = nullptr;
  uint64_t length = 0;
  uint64_t iova = 0;
  uint32_t access = 0;
  const MemoryBacking* backing = nullptr;  // outlives the region; null: ordinary memory
};

class MemoryRegistry {
 public:
  // `secret` makes keys unguessable; it comes from the operating system, or from a simulator's
  // seed.
  explicit MemoryRegistry(uint64_t secret);

  // Regions with remote access are exposed there from now on. No region exists yet.
  void expose_through(wire::Exposure* exposure) { exposure_ = exposure; }

  // Registers [base, base + length), which peers address from `iova`. Returns the key, lkey and
  // rkey alike.
  Result<uint32_t> add_region(const RegionInfo& region);
  Result<uint32_t> add_region(uint32_t pd, std::byte* base, uint64_t length, uint64_t iova,
                              uint32_t access) {
    return add_region({pd, base, length, iova, access, {}});
  }
  // A region of all addresses, for the owner's requests only: writes are discarded, reads return
  // zeros.
  Result<uint32_t> add_null_region(uint32_t pd);
  // The key stays. EBUSY while windows are bound to it; nothing changes if it fails.
  Status change_region(uint32_t key, const RegionInfo& region);
  // EBUSY while windows are bound to it.
  Status remove_region(uint32_t key);

  Result<uint32_t> add_window(uint32_t pd, WindowType type);
  Status remove_window(uint32_t rkey);

  // Binds a window of type 1 or 2, by work request. On success its key is binding.new_rkey.
  bool bind_window(uint32_t pd, wire::Qpn qpn, uint32_t window_rkey, const WindowBinding& binding);

  // Unbinds a type 2 window. Memory regions cannot be invalidated.
  bool invalidate(uint32_t pd, wire::Qpn qpn, uint32_t rkey);
  // The queue pair is destroyed, and its number may be reused: unbinds its type 2 windows.
  void unbind_windows_of(wire::Qpn qpn);

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

  // Ordinary memory for copies of outgoing payload: as much as a packet has. Empty without a region
  // that needs it.
  std::span<std::byte> staging() const { return staging_; }

  // The region of an lkey; null if there is none.
  const RegionInfo* region_of(uint32_t lkey) const;
  bool is_window(uint32_t key) const;

  size_t live() const { return regions_ + windows_; }
  static constexpr size_t kMaxRegions = size_t{1} << 19;
  static constexpr size_t kMaxWindows = size_t{1} << 19;

 private:
  static constexpr size_t kNullBytes = wire::kMaxPayloadBytes + 64;

  enum class Kind : uint8_t { Free, Region, Null, Window1, Window2 };
  static bool is_window(Kind kind) { return kind == Kind::Window1 || kind == Kind::Window2; }
  struct Entry : RegionInfo {    // windows: the part of the region that they grant
    uint32_t bound_windows = 0;  // regions
    uint32_t region_index = 0;   // windows
    wire::Qpn qpn;               // type 2 windows: the one queue pair that may use it
    Kind kind = Kind::Free;
    bool bound = false;  // windows: refers to a region now
    uint8_t tag = 0;     // the key's low byte
  };

  // The memory of all null regions: zeros to read, and space for discarded bytes.
  struct NullMemory {
    alignas(64) std::array<std::byte, kNullBytes> zeros{};
    alignas(64) std::array<std::byte, kNullBytes> discarded{};
  };

  // A keyed permutation of 24 bits, so that the key's upper part does not reveal the index.
  uint32_t encrypt(uint32_t index) const;
  uint32_t decrypt(uint32_t code) const;
  uint32_t key_of(uint32_t index) const { return encrypt(index) << 8 | entries_[index].tag; }
  uint32_t index_of(uint32_t key) const {
    const uint32_t code = key >> 8;
    Decrypted& known = decrypted_[code % decrypted_.size()];
    if (known.code != code) known = {code, decrypt(code)};
    return known.index;
  }
  const Entry* find(uint32_t key) const;
  Entry* find(uint32_t key) { return const_cast<Entry*>(std::as_const(*this).find(key)); }
  Entry* find_window(uint32_t key);
  Result<uint32_t> take_slot(Kind kind);
  void release_slot(uint32_t index);
  void unbind(Entry& window);
  void expose(uint32_t index);
  void prepare_copies(const RegionInfo& region);
  const Entry* find_granting(uint32_t key, uint32_t pd, wire::Qpn qpn, uint32_t access) const;

  uint32_t round_keys_[4];
  // A program uses few keys at a time.
  struct Decrypted {
    uint32_t code = UINT32_MAX;  // not a code: codes have 24 bits
    uint32_t index = 0;
  };
  mutable std::array<Decrypted, 16> decrypted_;
  Prng tags_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
  size_t regions_ = 0;
  size_t windows_ = 0;
  size_t bound_type2_ = 0;
  wire::Exposure* exposure_ = nullptr;       // null: no one-sided access
  std::unique_ptr<NullMemory> null_memory_;  // created with the first null region
  mutable std::vector<std::byte> staging_;   // allocated with the first region that is copied
};

}  // namespace verbena::core
