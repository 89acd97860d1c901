// Nic: one engine, its datapath, one lock, and whoever turns the crank. An application thread does
// so inside ibv_poll_cq and ibv_post_send; when none is there, a background thread does. One Nic
// per device and process: all contexts of that device share it.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "core/engine.h"
#include "datapath/datapath.h"
#include "datapath/selecting_datapath.h"
#include "datapath/udp/udp_datapath.h"
#include "host/slot_directory.h"
#include "os/no_cancel.h"
#include "os/numa.h"
#include "runtime/busy_poll_policy.h"
#include "runtime/devices.h"
#include "runtime/event_channel.h"
#include "runtime/lane_lock.h"
#include "runtime/late_events.h"
#include "runtime/recent_clock.h"

namespace verbena::runtime {

class ConnectionManager;
class Management;

using SharedAddress = std::shared_ptr<const core::AddressHandle>;

class Nic {
 public:
  // The Nic of this device, made on first use and ended with its last user.
  static Result<std::shared_ptr<Nic>> open(const DeviceInfo& device);
  ~Nic();
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  // Holding one is holding the Nic: the engine is reachable only through it.
  // This one is for calls that may be a packet's only cost (see no_cancel.h).
  class PostingGuard {
   public:
    explicit PostingGuard(Nic& nic) : nic_(nic) { nic_.lock(); }
    ~PostingGuard() { nic_.unlock(); }
    PostingGuard(const PostingGuard&) = delete;
    PostingGuard& operator=(const PostingGuard&) = delete;
    core::Engine& engine() { return *nic_.engine_; }

   private:
    Nic& nic_;
  };
  class Guard : os::NoCancel, public PostingGuard {
   public:
    explicit Guard(Nic& nic) : PostingGuard(nic) {}
  };

  // Its interface is gone, and does not come back: one with the same index is another.
  bool removed() const { return removed_.load(std::memory_order_relaxed); }
  // After a fork the child's copy is dead: it has no datapath, and calls that need one fail with
  // EIO. The books (memory keys, attributes, the port as it was) remain, as the child's own copy.
  bool dead() const { return dead_.load(std::memory_order_relaxed); }

  // --- control --------------------------------------------------------------------------------
  Result<core::QueuePair*> create_qp(const core::QpConfig& config, Owner* owner);
  // A further owner of an XRC receive queue pair that exists.
  Result<core::QueuePair*> open_qp(wire::Qpn qpn, uint32_t xrc_domain, Owner* owner);
  // It lives as long as its last owner.
  // EBUSY while it is attached to a multicast group.
  Status destroy_qp(core::QueuePair* qp, Owner* owner);
  // Opens the path when the address vector is set. Changes nothing if it fails.
  Status modify_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask);
  // What peers were doing in our memory by themselves when something was hidden from them: memory
  // that is deregistered or changed, a queue pair that ends. It was revoked. What the kernel was
  // copying at that moment is still to be waited for, before the memory is anybody else's.
  using Visits = datapath::RevokedVisits;
  // Under the Guard under which memory was hidden.
  void revoke_visits(PostingGuard& guard, Visits& visits);
  // Not under a Guard.
  void await_end_of(Visits& visits);
  // Opens the way to an address for datagrams. It closes when nobody shares the handle any more and
  // what was posted with it has left. Not to be dropped under a Guard.
  Result<SharedAddress> open_address(uint32_t pd, const core::AddressVector& address);
  // Multicast: joins the group with its first member, leaves it with its last.
  Status attach(core::QueuePair& qp, const wire::Gid& group);
  Status detach(core::QueuePair& qp, const wire::Gid& group);
  core::SharedReceiveQueue* create_srq(const core::SrqConfig& config, Owner* owner);
  Status modify_srq(core::SharedReceiveQueue& srq, std::optional<uint32_t> max_wr,
                    std::optional<uint32_t> limit);
  void destroy_srq(core::SharedReceiveQueue* srq);
  // Drops what the engine still wanted to tell about it. Call before destroying it.
  void forget_cq(core::CompletionQueue* cq);

  // --- data -----------------------------------------------------------------------------------
  // Under a Guard: what time it is, to a microsecond.
  Instant time() { return clock_.now(); }
  // The same, of the last turn, for what does not depend on it.
  Instant recent_time() const { return turned_at_; }
  // Under a Guard, after posting sends to `qp`: they leave now if the peer is idle, otherwise with
  // the next turn (the acknowledgement under way, or a deadline, brings it).
  void after_post(PostingGuard& guard, core::QueuePair& qp, Instant at);
  // Under a Guard, when a send queue is full: a caller that tries again and again may leave nobody
  // else the lock, so it must be the one to make room.
  void make_room(PostingGuard& guard) {
    (void)guard;
    turn(Owe::Nothing);
  }
  // ibv_poll_cq found nothing: one bounded turn if nobody else is at it.
  void turn_for_poller();
  // The caller wants an event for the next completion, and is about to sleep.
  void arm(core::CompletionQueue& cq, core::Armed level);
  // The caller is about to sleep on a completion channel.
  void poller_sleeps();

  // --- the port -------------------------------------------------------------------------------
  const DeviceInfo& device() const { return device_; }
  PortState port();
  wire::Gid gid(size_t index);
  size_t gid_table_size();

  // Made on first use; null in the child of a fork.
  ConnectionManager* connection_manager();

  // Contexts that want port events (Event::kind as ibv_event_type, object null).
  void add_listener(EventChannel* channel);
  void remove_listener(EventChannel* channel);

  // Counters in words, one a line: "name value".
  std::string counters_text();

  // The process ends: sends what waits for a next turn that will not come.
  void transmit_at_exit();

  // Fork support: called by the process-wide handlers.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  void abandon_in_child();

 private:
  friend class Management;
  explicit Nic(const DeviceInfo& device);
  Status start();
  void stop();
  void add_shared_memory(std::unique_ptr<datapath::UdpDatapath> udp);
  Status decorate();
  static void* thread_main(void* self);
  void run_background();
  void background_round();
  void rest_if_exhausted();
  bool work_until_quiet();
  void pass_on_what_is_left();
  struct Outcome {
    bool received;    // packets came in
    bool unfinished;  // something is left that no descriptor will announce
  };
  // What a turn may leave unsent, and who will send it: nothing; to a steady poller that has just
  // got a completion, everything; to an application that may answer what was written,
  // acknowledgements.
  enum class Owe : uint8_t { Nothing, ToPoller, ToReply };
  Outcome turn(Owe owe);  // one bounded turn; never throws
  Outcome take_turn(Owe owe);
  void on_exhaustion();
  size_t read_on(core::Engine::Arrivals& arrivals, Instant at);
  bool turn_polled();
  bool await_answer();
  bool owes() const { return owed_since_ != kNever; }
  bool may_hold_for_reply() const;
  bool may_wait(core::Engine::Arrivals arrivals, size_t packets, Instant at) const;
  Duration patience() const;
  bool poller_at_work(Instant at) const;
  void met_poller();
  void settle_debt(bool paid_by_reply);
  void transmit(Instant at);
  void answer_what_came();
  void narrow_paths(Instant at);
  void log_notice();
  void deliver() {
    if (management_ != nullptr || engine_->state().anything_to_tell()) [[unlikely]]
      tell_applications();
  }
  void tell_applications();
  void refresh_port();
  void end_if_removed();
  Result<wire::Gid> source_for(const core::AddressVector& address) const;
  Result<wire::PathId> open_path(const core::AddressVector& address, const wire::Gid& source,
                                 wire::Qpn peer);
  Status fill_address(core::AddressHandle& handle);
  void close_address(const core::AddressHandle& handle);
  Status listen_everywhere();
  bool has_address(const wire::Gid& gid) const;
  Management& management();
  Instant earliest_deadline() const {
    return std::min(engine_->earliest_deadline(), own_deadline());
  }
  Instant next_deadline() { return std::min(engine_->next_deadline(), own_deadline()); }
  Instant own_deadline() const { return std::min(management_deadline_, late_events_.deadline()); }
  Status end_qp(core::QueuePair* qp, Owner* owner, Visits& visits);
  Status change_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask, Visits& visits);
  void revoke_visits_through(wire::Qpn qpn, wire::Qpn peer, Visits& visits);
  void forget_over(Visits& visits, bool observe_threads);
  void reach_peer(const core::QueuePair& qp, const core::QpAttributes& attr, uint32_t mask);
  bool shares_memory(const core::QueuePair& qp);
  void await_settled();
  void wake_thread();
  void lock() { mutex_.lock(); }
  void unlock() {
    if (dead()) [[unlikely]]
      return mutex_.unlock();
    deliver();
    // The one race: a deadline earlier than what the sleeper knows of.
    if (sleeping_until_ != kAwake && earliest_deadline() < sleeping_until_) [[unlikely]]
      return unlock_and_wake();
    mutex_.unlock();
  }
  void unlock_and_wake();
  void watch(bool on);

  const DeviceInfo device_;
  LaneLock mutex_;
  std::atomic<bool> dead_{false};
  std::unique_ptr<host::SlotDirectory> directory_;
  std::unique_ptr<datapath::Datapath> datapath_;  // with decorators around it where asked for
  datapath::UdpDatapath* udp_ = nullptr;          // the innermost
  datapath::SelectingDatapath* local_ = nullptr;  // around it, unless all is to go over the wire
  std::unique_ptr<core::Engine> engine_;
  std::unique_ptr<Management> management_;  // null: nobody needed it yet
  Instant management_deadline_ = kNever;
  LateEvents late_events_;
  PortState port_;
  GidTable gids_;
  InterfaceMonitor monitor_;
  std::atomic<bool> removed_{false};  // the interface is gone
  std::vector<EventChannel*> listeners_;
  bool takes_datagrams_ = false;  // there is or was a UD queue pair: all addresses listen

  // Background thread.
  pthread_t thread_{};
  bool thread_running_ = false;
  int wake_fd_ = -1;  // eventfd: look again (stop, earlier deadline, more to do)
  int gate_fd_ = -1;  // epoll around the datapath's descriptor: armed only while the thread watches
  bool stop_ = false;               // under mutex_
  os::Placement placement_;         // under mutex_
  uint64_t activity_seen_ = 0;      // packets sent until the thread's last round
  bool port_changed_ = false;       // and was not looked at yet
  bool exhausted_ = false;          // memory was, since the thread's last round; under mutex_
  bool exhaustion_logged_ = false;  // under mutex_
  static constexpr Instant kAwake{INT64_MIN};
  Instant sleeping_until_ = kAwake;  // under mutex_
  // Who watches the sockets (see progress.cc). Under mutex_.
  std::atomic<bool> watching_{true};  // written under mutex_
  Prediction poller_stays_{64,
                           4096};  // that it may have the watch; in wakings. Wrong: a millisecond
  uint32_t good_looks_ = 0;
  uint32_t polls_met_ = 0;
  Instant owed_since_ = kNever;  // when a turn left something unsent
  Owe owed_to_ = Owe::Nothing;   // and what for
  Prediction reply_follows_{128,
                            256};  // so that an acknowledgement may wait; in wakings. Wrong: 20 us
  uint32_t paid_in_a_row_ = 0;
  uint32_t steady_polls_ = 0;
  bool wrote_alone_ = false;  // what was posted last was written into the peer's memory from here
  bool completion_in_hand_ = false;      // of whoever awaits an answer to it
  Prediction answer_follows_{16, 4096};  // so that one may look out for it; in posts. Wrong: 3 us
  BusyPollPolicy busy_poll_;
  bool suspicious_ = false;  // the last look-in found no poll since suspected_poll_
  Instant suspected_poll_;
  RecentClock clock_;                        // under mutex_; all that the engine is told
  Instant turned_at_;                        // when the last turn was made
  std::atomic<Instant> last_poll_{};         // when the last turn for a poller was made
  std::atomic<pthread_t> turning_thread_{};  // inside turn() now; for questions that arrive there
};

}  // namespace verbena::runtime
