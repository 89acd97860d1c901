// LaneSet: the lanes of a Nic. Completion queues are spread over the lanes, and a queue pair lives
// in the lane of its completion queues, so threads with completion queues of their own share
// nothing. A program with one completion queue has one lane.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "base/result.h"
#include "core/memory_registry.h"
#include "os/no_cancel.h"
#include "runtime/lane.h"

namespace verbena::runtime {

// Some of the lanes of a LaneSet. Lanes are only added. Any thread.
class LaneIndices {
 public:
  void add(const Lane& lane) {
    bits_.fetch_or(uint64_t{1} << lane.index(), std::memory_order_release);
  }
  bool empty() const { return bits_.load(std::memory_order_acquire) == 0; }
  template <typename Visit>
  void each(Visit visit) const {
    for (uint64_t left = bits_.load(std::memory_order_acquire); left != 0; left &= left - 1) {
      visit(static_cast<size_t>(std::countr_zero(left)));
    }
  }

 private:
  std::atomic<uint64_t> bits_{0};
};

// The lanes that have queue pairs of one completion queue. Most have one.
class CqLanes {
 public:
  // `first` polls for a queue without queue pairs. `of_channel`: the lanes of all queues of its
  // completion channel; null: it has none.
  explicit CqLanes(Lane& first, LaneIndices* of_channel = nullptr)
      : home_(&first), of_channel_(of_channel) {}

  Lane& home() const { return *home_.load(std::memory_order_acquire); }
  // Takes the lock of the lane that the queue belongs to, which changes once.
  Lane& lock_home() const;
  bool is_bound() const { return bound_; }
  // ibv_poll_cq found nothing: takes one bounded turn of each lane, unless another thread is in it.
  void turn_for_poller() const {
    home().turn_for_poller();
    if (!others_.empty()) [[unlikely]]
      each_other([](Lane& lane) { lane.turn_for_poller(); });
  }
  void each_other(const std::function<void(Lane&)>& visit) const;

  // For LaneSet, under its lock. Under that of the lane before, too: its holder may be changing the
  // queue.
  void bind(Lane& home) {
    home_.store(&home, std::memory_order_release);
    bound_ = true;
    if (of_channel_ != nullptr) of_channel_->add(home);
  }
  void add(const Lane& other);

 private:
  std::atomic<Lane*> home_;
  LaneIndices others_;
  LaneIndices* const of_channel_;
  bool bound_ = false;  // a queue pair was created with it
};

class LaneSet {
 public:
  static constexpr size_t kMaxLanes = 64;

  LaneSet(const DeviceInfo& device, LaneOwner& owner, core::MemoryRegistry& memory);
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // Its lock also guards the control plane. It is taken before those of the others.
  Lane& first() { return *lanes_[0]; }
  const Lane& first() const { return *lanes_[0]; }
  size_t size() const { return size_.load(std::memory_order_acquire); }
  Lane& at(size_t index) { return *lanes_[index]; }
  template <typename Visit>
  void each(Visit visit) {
    for (size_t i = 0, n = size(); i < n; ++i) visit(*lanes_[i]);
  }
  template <typename Visit>
  void each_of(const LaneIndices& some, Visit visit) {
    some.each([&](size_t index) { visit(*lanes_[index]); });
  }
  // The lane of a queue pair's number.
  Lane& of(wire::Qpn qpn);

  // Where a new queue pair lives. Binds its completion queues to that lane; null: it has none, or
  // nobody polls it. `only_first`: it cannot live elsewhere.
  Lane& choose(core::CompletionQueue* send_cq, core::CompletionQueue* receive_cq, bool only_first);
  // The completion queue is destroyed.
  void release(const CqLanes& cq);

  // Holds the locks of all lanes.
  class AllLocked {
   public:
    explicit AllLocked(LaneSet& lanes) : lanes_(lanes) { lanes_.lock_all(); }
    ~AllLocked() { lanes_.unlock_all(); }
    AllLocked(const AllLocked&) = delete;
    AllLocked& operator=(const AllLocked&) = delete;

   private:
    const os::NoCancel no_cancel_;
    LaneSet& lanes_;
  };

  // A fork happens: no lane is added meanwhile, and all locks are held.
  void lock_for_fork();
  void unlock_after_fork();

 private:
  // The holder of all locks begins no memory lookup.
  void lock_all();
  void unlock_all();
  Lane& least_used();
  bool add_lane();
  // All of them are the first lane's.
  void each_srq(const std::function<void(core::SharedReceiveQueue&)>& visit);
  static void bind(core::CompletionQueue* cq, Lane& lane, std::array<int, kMaxLanes>& queues);

  const DeviceInfo& device_;
  LaneOwner& owner_;
  core::MemoryRegistry& memory_;
  std::array<std::unique_ptr<Lane>, kMaxLanes> lanes_;
  std::atomic<size_t> size_{1};
  std::mutex mutex_;                     // guards the rest, and adding; taken before a lane's lock
  std::array<int, kMaxLanes> queues_{};  // completion queues bound to each lane
  bool no_more_ = false;                 // a lane could not be opened: this is all
  size_t most_ = 1;                      // lanes, until the time below
  Instant most_until_{};
};

}  // namespace verbena::runtime
