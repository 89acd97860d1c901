// Lane: one engine under one lock, its datapath, and the threads that make progress for it. An
// application thread makes progress inside ibv_poll_cq and ibv_post_send; when none does, the
// background thread does (progress_policy.h decides). The lanes of a Nic share only its memory
// registry, and completion queues and shared receive queues that the program uses in several lanes.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/time.h"
#include "core/engine.h"
#include "os/no_cancel.h"
#include "runtime/background_thread.h"
#include "runtime/devices.h"
#include "runtime/lane_datapath.h"
#include "runtime/lane_lock.h"
#include "runtime/late_events.h"
#include "runtime/progress_policy.h"
#include "runtime/recent_clock.h"

namespace verbena::runtime {

class Lane;
class LaneSet;

// The interface of a lane to its Nic. All calls are made with the lane's lock held.
class LaneOwner {
 public:
  // MADs were received, or the owner's deadline has passed (Lane::set_owner_deadline).
  virtual void on_management(Lane& lane, Instant at) = 0;
  // The engine has events for applications, or the owner asked for this (Lane::request_delivery).
  virtual void deliver_events(Lane& lane) = 0;
  // Descriptors that wake the background thread. It calls on_wakeup() after every sleep.
  virtual BackgroundThread::ExtraFds control_fds(const Lane& lane) const = 0;
  virtual void on_wakeup(Lane& lane, const BackgroundThread::Wakeup& wakeup) = 0;

 protected:
  ~LaneOwner() = default;
};

class alignas(64) Lane final : private BackgroundThread::Body {
 public:
  // All of them must outlive the lane, which has this index in `lanes`.
  Lane(const DeviceInfo& device, LaneOwner& owner, LaneSet& lanes, core::MemoryRegistry& memory,
       size_t index)
      : device_(device), owner_(owner), lanes_(lanes), memory_(memory), index_(index) {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  Status start(host::SlotDirectory::CountersText counters);
  // Ends the background thread.
  void stop() { thread_.stop(); }
  bool is_running() const { return thread_.is_running(); }
  // In the child of a fork: no thread and no datapath. The engine's records stay.
  void abandon();
  bool is_abandoned() const { return abandoned_.load(std::memory_order_relaxed); }

  size_t index() const { return index_; }
  LaneSet& lanes() { return lanes_; }
  uint8_t slot() const { return slot_; }

  // --- the lock ---------------------------------------------------------------------------------
  // Guards everything below and the engine. Guards (nic.h) are the usual way to hold it.
  void lock() { lock_.lock(); }
  // Delivers events. Wakes the background thread if it would sleep past the next deadline.
  void unlock() {
    if (is_abandoned()) [[unlikely]]
      return lock_.unlock();
    deliver();
    if (thread_.is_asleep() && earliest_deadline() < thread_.sleeps_until()) [[unlikely]]
      return unlock_and_wake();
    lock_.unlock();
  }
  // The lock without its side effects, for callers that give the engine nothing to do.
  LaneLock& mutex() { return lock_; }
  // Waits until the holder of the lock has released it once, or has paused its lookups: those that
  // were under way have ended. `within_turn`: the caller holds the lock of another lane.
  void await_lookups(bool within_turn);
  // The holder of the lock waits for the locks of other lanes, and begins no lookup meanwhile.
  // Otherwise two lanes could wait for each other.
  void pause_lookups() { lookups_paused_.store(true, std::memory_order_release); }
  void resume_lookups() {
    lookups_paused_.store(false, std::memory_order_relaxed);
    // A lookup that begins now sees all changes whose author saw the pause (await_lookups).
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  // The caller is inside a turn of this lane, and so holds the lock.
  bool is_in_turn() const {
    return turning_thread_.load(std::memory_order_relaxed) == pthread_self();
  }

  // --- parts ------------------------------------------------------------------------------------
  core::Engine& engine() { return *engine_; }
  bool has_engine() const { return engine_ != nullptr; }
  bool is_open() const { return has_engine() && datapath_.all != nullptr; }
  LaneDatapath& datapath() { return datapath_; }
  const LaneDatapath& datapath() const { return datapath_; }
  LateEvents& late_events() { return late_events_; }

  // --- time -------------------------------------------------------------------------------------
  // With microsecond precision.
  Instant time() { return clock_.now(); }
  // The time of the last turn.
  Instant recent_time() const { return turned_at_; }
  // A post needs the exact time only if a rate decides when its packets leave.
  Instant time_for_post(const core::QueuePair& qp) {
    return qp.has_rate() ? time() : recent_time();
  }

  // --- progress by the application --------------------------------------------------------------
  // Takes the lock if it is free: ibv_poll_cq found nothing.
  void turn_for_poller();
  // The rest is called with the lock held. After sends were posted to `qp`: they are sent now if
  // nothing is in flight to the peer, otherwise in the next turn.
  void after_post(core::QueuePair& qp);
  // A send queue is full. A caller that posts in a loop may starve the other threads of the lock,
  // so it makes progress itself.
  void make_room() { make_progress(); }
  // One bounded turn that sends everything. True: packets were received.
  bool make_progress() { return turn(Defer::Nothing).received; }
  // Sends a bounded number of packets, because READ responses can be gigabytes. The background
  // thread sends the rest.
  void transmit(Instant at);
  // Before a queue pair ends: sends the ACKs of all packets received for it, as hardware would have
  // done, and the delayed ones.
  void acknowledge_received();
  // Where the kernel does not steer packets, this lane's sockets receive packets of other
  // processes. Forwards them before the sockets are closed.
  void forward_remaining_packets();
  // The application asks for an event for the next completion and is about to sleep.
  void arm(core::CompletionQueue& cq, core::Armed level);
  // The same for a completion queue that is armed in another lane.
  void expect_sleep();
  // Without the lock: the application is about to wait for a completion channel.
  void poller_sleeps();

  // --- for the owner ----------------------------------------------------------------------------
  void set_owner_deadline(Instant deadline) { owner_deadline_ = deadline; }
  // Makes the next unlock, or turn of the thread, call deliver_events().
  void request_delivery() { delivery_requested_ = true; }
  void deliver() {
    if (delivery_requested_ || engine_->state().has_reports()) [[unlikely]] {
      delivery_requested_ = false;
      owner_.deliver_events(*this);
    }
  }
  void wake_thread() { thread_.wake(); }
  // Another lane has overrun a completion queue that this one may use. Any thread.
  void report_overrun() {
    overrun_reported_.store(true, std::memory_order_release);
    thread_.wake();
  }
  // Memory ran out, and a packet or message was dropped.
  void on_exhaustion();
  // Logs why packets to a process of this host do not go through shared memory.
  void log_notice();

 private:
  struct Outcome {
    bool received = false;
    bool unfinished = false;  // work is left that no descriptor announces
  };
  Outcome turn(Defer defer);  // one bounded turn; never throws
  Outcome take_turn(Defer defer);
  bool may_defer(Defer defer, ProgressPolicy::TurnResult& result, Instant at) const;
  size_t read_before_deadlines(core::Engine::Arrivals& arrivals, Instant at);
  bool poll_once();
  void transmit_posted();
  bool poll_for_response();
  void revert_paths_to_mtu(Instant at);
  void give_progress_to_thread();
  void give_progress_to_poller();
  Instant earliest_deadline() const {
    return std::min(engine_->earliest_deadline(), own_deadline());
  }
  Instant next_deadline() { return std::min(engine_->next_deadline(), own_deadline()); }
  Instant own_deadline() const { return std::min(owner_deadline_, late_events_.deadline()); }
  // Including the datapath's.
  Instant wakeup_deadline() { return std::min(next_deadline(), datapath_.wire->deadline()); }
  void unlock_and_wake();
  uint64_t count(core::CounterId id) { return engine_->state().counters[id]; }

  // The background thread (lane_background.cc).
  void run_background() override;
  void background_round();
  BackgroundThread::Wakeup sleep_in_background();
  void do_housekeeping(const BackgroundThread::Wakeup& wakeup);
  bool work(const BackgroundThread::Wakeup& wakeup);
  bool turn_until_quiet();
  void handle_overrun();
  void yield_lock();
  void wait_for_memory();

  const DeviceInfo& device_;
  LaneOwner& owner_;
  LaneSet& lanes_;
  core::MemoryRegistry& memory_;
  const size_t index_;
  uint8_t slot_ = 0;
  std::atomic<bool> lookups_paused_{false};
  std::atomic<bool> overrun_reported_{false};  // by another lane
  alignas(64) LaneLock lock_;
  std::atomic<bool> abandoned_{false};
  LaneDatapath datapath_;
  std::unique_ptr<core::Engine> engine_;
  ProgressPolicy policy_;
  BackgroundThread thread_;
  LateEvents late_events_;
  RecentClock clock_;        // the engine's time
  Instant turned_at_;        // time of the last turn
  Instant fruitless_since_;  // since then polls have received nothing
  std::atomic<pthread_t> turning_thread_{};
  Instant owner_deadline_ = kNever;
  bool delivery_requested_ = false;
  struct {
    bool pending = false;  // since the background thread's last round
    bool logged = false;
  } exhaustion_;
};

}  // namespace verbena::runtime
