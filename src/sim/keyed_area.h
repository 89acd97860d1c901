// KeyedArea: memory of a process that peers access by a key which its owner withdraws and renews
// while they use it. It models which requests may succeed and which may fail. Without a valid key
// the memory has canary bytes, which no lane may change.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/report.h"
#include "sim/world.h"

namespace verbena::sim {

class KeyedArea {
 public:
  enum class Kind : uint8_t { Region, Window1, Window2 };
  // Places that peers write to; behind them, bytes that peers read.
  static constexpr uint32_t kPlaces = 32;
  static constexpr uint32_t kPlaceBytes = 1024;
  static constexpr uint32_t kReadAt = kPlaces * kPlaceBytes;
  static constexpr uint32_t kReadBytes = 4096;
  static constexpr uint32_t kBytes = kReadAt + kReadBytes;

  // A peer's use of a key, through the process's queue pair of number `user`. Only grants from
  // `since` on may serve it.
  struct Use {
    static constexpr size_t kNone = ~size_t{0};
    uint32_t key = 0;
    uint32_t user = 0;
    size_t since = 0;
    size_t grant = kNone;  // valid when the request was posted
  };

  // `is_watched`: the engine accesses the memory through functions that report each access.
  KeyedArea(World& world, Report& report, Host& owner, Kind kind, bool is_watched);
  KeyedArea(const KeyedArea&) = delete;
  KeyedArea& operator=(const KeyedArea&) = delete;

  Kind kind() const { return kind_; }
  uint64_t address() const { return iova_; }
  bool is_busy() const { return is_busy_; }
  bool can_bind() const;
  bool is_valid() const { return grant_ != Use::kNone; }

  // --- for the peers -----------------------------------------------------------------------------
  // The valid key, if `user` may use it.
  std::optional<Use> use(uint32_t user) const;
  // A key that was withdrawn, or that only another user may use; nothing if there is none.
  std::optional<Use> use_refused(uint32_t user) const;
  // The user invalidates the key. Its later requests with this key must fail.
  Use invalidate_by(uint32_t user);
  Use use_from_now_on(uint32_t key, uint32_t user) const { return {key, user, grants_.size()}; }
  void invalidated_by_user(const Use& use);
  bool may_succeed(const Use& use) const;
  bool may_fail(const Use& use) const;
  // Whether memory had these bytes while the key was valid. Each packet may have met another grant.
  bool has_held(const Use& use, uint64_t offset, std::span<const std::byte> bytes) const;

  // --- for the owner -----------------------------------------------------------------------------
  // A call that makes the key invalid, or gives it other memory. Even while lanes are in turns.
  // False: it is not possible now.
  bool withdraw_by_call();
  void register_region();
  // Work requests for a queue pair of the process; the area is busy until changed(). A type 2
  // window is bound by its user and only while it is not bound.
  core::SendRequest bind(uint32_t user);
  core::SendRequest unbind_or_invalidate();
  void changed(core::WcStatus status);
  // The queue pair was destroyed.
  void user_ended(uint32_t user);

  // --- checks ------------------------------------------------------------------------------------
  bool contains(const std::byte* at) const;
  // A lane accesses these bytes now.
  void check_access(const std::byte* at);
  void check_untouched();
  uint64_t withdrawals() const { return withdrawals_; }

 private:
  // A time during which a key was valid for a block of memory.
  struct Grant {
    uint32_t key = 0;
    size_t block = 0;
    uint32_t user = 0;       // type 2: the queue pair that may use it; else 0
    bool is_ending = false;  // the owner withdraws it
    bool is_over = false;    // no access may follow
    uint64_t withdrawn = 0;  // by a call that began then; 0: by a work request
    Bytes content;           // at the end
  };

  bool is_window() const { return kind_ != Kind::Region; }
  core::RegionInfo region_over(size_t block) const;
  KeyUse key_use(const Grant& grant) const;
  std::optional<size_t> free_block() const;
  size_t grant_block(uint32_t key, size_t block, uint32_t user);
  void end(size_t grant);
  size_t begin_call();
  void end_call();
  void begin_change(uint32_t key);
  bool remove_region();
  bool change_region();
  bool remove_window();
  bool serves(const Grant& grant, const Use& use) const;
  void problem(const std::string& what) { report_.problem(world_.now(), what); }

  World& world_;
  Report& report_;
  Process& process_;
  Kind kind_;
  const core::MemoryBacking* backing_;
  std::span<std::byte> blocks_[2];
  uint32_t block_keys_[2] = {0, 0};  // windows: of the regions behind them
  uint64_t iova_;
  uint32_t window_key_ = 0;
  std::vector<Grant> grants_;
  size_t grant_ = Use::kNone;     // whose key is valid, as far as peers know
  bool is_busy_ = false;          // a call or a work request changes it
  size_t before_ = Use::kNone;    // a work request: the grant that it ends,
  size_t next_ = Use::kNone;      // and the one that begins
  std::optional<KeyUse> rebind_;  // and what the process waits for
  uint64_t withdrawals_ = 0;
};

// Reports the accesses of lanes to watched memory, until it is destroyed. One at a time.
class AccessObserver {
 public:
  explicit AccessObserver(std::function<void(const std::byte*)> on_access);
  ~AccessObserver();
  AccessObserver(const AccessObserver&) = delete;
  AccessObserver& operator=(const AccessObserver&) = delete;

 private:
  std::function<void(const std::byte*)> on_access_;
};

}  // namespace verbena::sim
