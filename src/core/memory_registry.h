// MemoryRegistry: memory regions and windows, with their keys and access rights. All engines of a
// process share it. Each engine looks keys up through a MemoryView of its own (memory_view.h),
// without a lock.
//
// A lookup is valid until the engine's owner ends the present call into the engine. A function here
// that withdraws a key returns only after all lookups of that key have ended (LookupBarrier), and
// an entry changes only while no lookup can find it. The bindings of windows change at any time, so
// they are copied out.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "base/seq_cell.h"
#include "base/spin_lock.h"
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

class MemoryView;

// Where several engines share a registry: waits until every lookup that began before the call has
// ended. `caller` is the view of the engine that makes the call, which has none under way; null: no
// engine.
class LookupBarrier {
 public:
  virtual void await_lookups(const MemoryView* caller) = 0;

 protected:
  ~LookupBarrier() = default;
};

class MemoryRegistry {
 public:
  // `secret` makes keys unguessable; it comes from the operating system, or from a simulator's
  // seed. `barrier` null: one thread uses the registry and all its views.
  explicit MemoryRegistry(uint64_t secret, LookupBarrier* barrier = nullptr);
  ~MemoryRegistry();
  MemoryRegistry(const MemoryRegistry&) = delete;
  MemoryRegistry& operator=(const MemoryRegistry&) = delete;

  // Regions with remote access are exposed there too, until remove_exposure().
  void add_exposure(wire::Exposure* exposure);
  void remove_exposure(wire::Exposure* exposure);

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
  // The key stays; no lookup succeeds during the call. A peer of this host may access the old
  // memory until its copies are revoked. EBUSY while windows are bound to it; nothing changes if it
  // fails.
  Status change_region(uint32_t key, const RegionInfo& region);
  // EBUSY while windows are bound to it.
  Status remove_region(uint32_t key);

  Result<uint32_t> add_window(uint32_t pd, WindowType type);
  Status remove_window(uint32_t rkey);

  // Binds a window of type 1 or 2, by work request of an engine. On success its key is
  // binding.new_rkey.
  bool bind_window(const MemoryView& engine, uint32_t pd, wire::Qpn qpn, uint32_t window_rkey,
                   const WindowBinding& binding);
  // Unbinds a type 2 window. Memory regions cannot be invalidated. Only the engine of its queue
  // pair looks up such a window, so there is nothing to wait for.
  bool invalidate(uint32_t pd, wire::Qpn qpn, uint32_t rkey);
  // The queue pair is destroyed, and its number may be reused: unbinds its type 2 windows.
  void unbind_windows_of(wire::Qpn qpn);

  // The region of an lkey; nothing if there is none.
  std::optional<RegionInfo> region_of(uint32_t lkey) const;
  bool is_window(uint32_t key) const;

  // A fork happens: no change is under way meanwhile.
  void lock_for_fork() { lock_.lock(); }
  void unlock_after_fork() { lock_.unlock(); }

  size_t live() const;
  static constexpr size_t kMaxRegions = size_t{1} << 19;
  static constexpr size_t kMaxWindows = size_t{1} << 19;

  // --- for MemoryView ---------------------------------------------------------------------------
  enum class Kind : uint8_t { Free, Region, Null, Window1, Window2 };
  static bool is_window(Kind kind) { return kind == Kind::Window1 || kind == Kind::Window2; }

  // What a window refers to now.
  struct Binding {
    std::byte* base = nullptr;
    uint64_t length = 0;
    uint64_t iova = 0;
    const MemoryBacking* backing = nullptr;
    uint32_t access = 0;
    uint32_t region_index = 0;
    wire::Qpn qpn;  // type 2: the one queue pair that may use it
    bool bound = false;
    uint8_t tag = 0;  // the key's low byte
  };
  using BindingCell = SeqCell<6>;
  static_assert(sizeof(Binding) <= sizeof(BindingCell) - sizeof(uint64_t));

  // The fields of RegionInfo change only while the kind is Free and no lookup is under way.
  // Windows use only `pd` of them.
  struct alignas(64) Entry : RegionInfo {
    // Written last, release.
    std::atomic<uint16_t> kind_and_tag{0};
    uint32_t bound_windows = 0;              // regions
    std::unique_ptr<BindingCell> binding{};  // windows; stays when the entry is reused

    static Kind kind_of(uint16_t value) { return static_cast<Kind>(value & 0xFF); }
    static uint8_t tag_of(uint16_t value) { return static_cast<uint8_t>(value >> 8); }
    Kind kind() const { return kind_of(kind_and_tag.load(std::memory_order_acquire)); }
    uint8_t tag() const { return tag_of(kind_and_tag.load(std::memory_order_relaxed)); }
    Binding load_binding() const;
  };
  // The place of a key, without its low byte; null if no key has ever had it. It stays valid, so
  // that a view can remember it.
  const Entry* place_of(uint32_t code) const;

  // The memory of all null regions: zeros to read, and space for discarded bytes.
  struct NullMemory {
    static constexpr size_t kBytes = wire::kMaxPayloadBytes + 64;
    alignas(64) std::array<std::byte, kBytes> zeros{};
    alignas(64) std::array<std::byte, kBytes> discarded{};
  };
  // After a lookup has found a null region.
  NullMemory& null_memory() const { return *null_memory_; }

 private:
  static constexpr size_t kEntriesPerChunk = 1024;
  static constexpr size_t kChunks = (kMaxRegions + kMaxWindows) / kEntriesPerChunk;
  using Chunk = std::array<Entry, kEntriesPerChunk>;

  // A keyed permutation of 24 bits, so that the key's upper part does not reveal the index.
  uint32_t encrypt(uint32_t index) const;
  uint32_t decrypt(uint32_t code) const;
  Entry& at(uint32_t index) const {
    return (*chunks_[index / kEntriesPerChunk].load(
        std::memory_order_relaxed))[index % kEntriesPerChunk];
  }
  uint32_t key_of(uint32_t index, uint8_t tag) const { return encrypt(index) << 8 | tag; }
  // All of the following under the lock.
  std::optional<uint32_t> index_of(uint32_t key) const;  // whatever its tag
  std::optional<uint32_t> find(uint32_t key, bool region) const;
  Result<uint32_t> take_place(Kind kind);
  void publish(uint32_t index, Kind kind);
  void withdraw(uint32_t index);
  void release_place(uint32_t index, Kind kind);
  void unbind(Entry& window, Binding& binding);
  void expose(uint32_t index, uint8_t tag);
  void await_lookups(const MemoryView* caller = nullptr) {
    if (barrier_ != nullptr) barrier_->await_lookups(caller);
  }

  uint32_t round_keys_[4];
  LookupBarrier* const barrier_;
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};  // read without the lock
  // Of all changes; guards the rest. On a cache line that lookups and posts do not read.
  alignas(64) mutable SpinLock lock_;
  Prng tags_;
  uint32_t entries_ = 0;  // ever used
  std::vector<uint32_t> free_;
  size_t regions_ = 0;
  size_t windows_ = 0;
  size_t bound_type2_ = 0;
  std::vector<wire::Exposure*> exposures_;   // empty: no one-sided access
  std::unique_ptr<NullMemory> null_memory_;  // created with the first null region
};

}  // namespace verbena::core
