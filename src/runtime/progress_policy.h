// ProgressPolicy: decides which thread owns progress, how long the background thread sleeps, and
// which transmissions a turn defers. Pure: time is handed in; no clock, no system call, no lock.
//
// A polling application makes progress best: no wake-up, no context switch. But it may stop polling
// at any time, for instance to spin on memory that a peer writes. So there are two progress owners:
//
//   The background thread: it sleeps on the datapath's descriptor, and a packet wakes it.
//   The polling thread: it polls; the background thread only checks every kPollCheckInterval
//   whether it still polls.
//
// An application that polls steadily becomes the progress owner. If a check finds packets waiting
// and no recent poll, the application stopped polling without handing progress back: the background
// thread takes over, and no application becomes the owner for many wake-ups.
//
// A turn may defer its transmission when a poll or a reply will probably follow at once, because
// the ACK then leaves in one batch with the reply. If nothing follows, the background thread sends
// the delayed ACK.
//
// All calls need the lane's lock, except those marked [no lock].
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "core/ack_scheduler.h"
#include "runtime/busy_poll_policy.h"
#include "runtime/prediction.h"

namespace verbena::runtime {

using core::Defer;

// Whether the application polls steadily enough to own progress.
class SteadyPoller {
 public:
  // A poll while the background thread owns progress. True: the application polls steadily.
  bool note_poll() { return keeps_polling_.is_due() && ++steady_polls_ >= kSteadyPolls; }
  void forget_polls() { steady_polls_ = 0; }
  // Packets woke the background thread, and the application had (not) polled just before.
  void met_poller() {
    if (++polls_met_ >= kPollsMet) keeps_polling_.end_pause();
  }
  void met_no_poller() { polls_met_ -= std::min(polls_met_, 2u); }
  // A check found the owner polling. [no lock]: called only by the background thread; it writes
  // nothing that the calls above read.
  void passed_check() {
    if (++passed_checks_ >= kPassedChecks) keeps_polling_.succeeded();
  }
  // The owner stopped polling while packets waited.
  void failed_check() {
    keeps_polling_.failed();
    passed_checks_ = 0;
    polls_met_ = 0;
  }
  void pass_wakeup() { keeps_polling_.pass(); }

 private:
  static constexpr uint32_t kSteadyPolls = 16;
  // Wake-ups that met the poller at work, less two for each that did not.
  static constexpr uint32_t kPollsMet = 16;
  static constexpr uint32_t kPassedChecks = 1000;

  Prediction keeps_polling_{64,
                            4096};  // in wake-ups; a failure delays packets by up to a millisecond
  uint32_t steady_polls_ = 0;
  uint32_t polls_met_ = 0;
  uint32_t passed_checks_ = 0;
};

// The delay of ACKs that wait for a reply to share a batch with.
class AckDelay {
 public:
  bool is_worthwhile() const { return reply_follows_.is_due(); }
  Duration length() const { return replies_in_a_row_ < kProven ? kFirstAckDelay : kProvenAckDelay; }
  void reply_followed(bool followed) {
    if (followed) {
      reply_follows_.succeeded();
      ++replies_in_a_row_;
    } else {
      replies_in_a_row_ = 0;
      reply_follows_.failed();
    }
  }
  void pass_wakeup() { reply_follows_.pass(); }

 private:
  static constexpr Duration kFirstAckDelay = microseconds(20);
  static constexpr Duration kProvenAckDelay = microseconds(500);
  static constexpr uint32_t kProven = 4;

  Prediction reply_follows_{128, 256};  // in wake-ups; a failure costs 20 us
  uint32_t replies_in_a_row_ = 0;
};

class ProgressPolicy {
 public:
  // The background thread checks this often whether the progress owner still polls.
  static constexpr Duration kPollCheckInterval = milliseconds(1);

  // --- progress owner ---------------------------------------------------------------------------
  bool thread_owns_progress() const {  // [no lock]
    return thread_owns_progress_.load(std::memory_order_relaxed);
  }
  void give_progress_to_thread() { set_owner(true); }
  void give_progress_to_poller() { set_owner(false); }

  // --- a poll by the application ----------------------------------------------------------------
  // True: the application polls steadily. Give progress to it.
  bool begin_poll() { return thread_owns_progress() && poller_.note_poll(); }
  Defer deferral_for_poll() const {
    return thread_owns_progress() ? deferral_for_thread() : Defer::UntilPoll;
  }
  // After the turn. True: wake the background thread, which sleeps until `sleeps_until`.
  bool end_poll(Instant at, bool has_more, Instant sleeps_until) {
    last_poll_.store(at, std::memory_order_relaxed);
    return thread_owns_progress() && must_wake_thread(at, has_more, sleeps_until);
  }

  // --- a turn -----------------------------------------------------------------------------------
  using TurnResult = core::TurnResult;
  bool may_defer(Defer defer, TurnResult turn) const {
    turn.completed |= waits_for_response_;
    return core::AckScheduler::may_defer(defer, turn);
  }
  void deferred(Defer defer, Instant at) {
    deferred_since_ = at;
    deferred_ = defer;
  }
  void transmitted() { deferred_since_ = kNever; }
  bool has_deferred() const { return deferred_since_ != kNever; }
  bool has_delayed_ack() const { return has_deferred() && deferred_ == Defer::UntilReply; }

  // --- a post -----------------------------------------------------------------------------------
  // True: the post will probably poll for the peer's response. The peer must see this process awake
  // before the request leaves.
  bool begin_post() {
    return thread_owns_progress() && last_post_one_sided_ && response_follows_.try_now();
  }
  // `one_sided`: the post wrote into the peer's memory. `announced`: begin_post() was true. True:
  // poll for the response now, for kResponseWait at most.
  bool end_post(bool one_sided, bool announced) {
    last_post_one_sided_ = one_sided;
    return one_sided && begin_response_wait(announced);
  }
  static constexpr Duration kResponseWait = microseconds(3);
  void end_response_wait(bool received);

  // --- a round of the background thread ---------------------------------------------------------
  // Falls asleep at `at`. `deadline`: of engine and datapath; `packets_sent`: in total.
  Instant sleep_until(Instant at, Instant deadline, uint64_t packets_sent);
  // The sleep ended without any descriptor. True: the owner polls; sleep on. [no lock]
  bool may_sleep_on(Instant at);
  bool polled_just_before(Instant at) const {  // [no lock]
    return at - last_poll() < kJustBefore;
  }
  // After a wake-up. True: leave the packets to the polling thread.
  bool leaves_packets_to_poller(Instant woke_at);
  // True: a delayed ACK has time left; do nothing in this round. `packets_announced`: the
  // datapath's descriptor woke the thread.
  bool leaves_ack_delayed(Instant woke_at, bool packets_announced, Instant deadline);
  // The thread makes progress in this round.
  void begin_work() { ack_delay_.pass_wakeup(); }
  // The thread takes turns until one finds nothing.
  void begin_turns() { busy_poll_.begin(); }
  Defer deferral_for_thread() const {
    return thread_owns_progress() && ack_delay_.is_worthwhile() ? Defer::UntilReply
                                                                : Defer::Nothing;
  }
  void found_packets() { busy_poll_.found(); }
  // A turn found nothing for `quiet`; the round received `packets`. True: take another turn.
  bool may_busy_poll(uint64_t packets, Duration quiet) {
    return thread_owns_progress() && packets >= kBurstPackets && busy_poll_.goes_on(quiet);
  }
  // True: give progress to the thread.
  bool end_round(bool packets_announced, bool polled_just_before, bool found);

 private:
  // Fewer packets than this are no burst.
  static constexpr uint64_t kBurstPackets = core::AckScheduler::kBurstPackets;
  static constexpr Duration kJustBefore = microseconds(5);
  // An owner without a poll for this long has stopped polling.
  static constexpr Duration kStoppedAfter = microseconds(100);

  bool must_wake_thread(Instant at, bool has_more, Instant sleeps_until);
  bool begin_response_wait(bool announced);
  Instant last_poll() const { return last_poll_.load(std::memory_order_relaxed); }
  void set_owner(bool thread) {
    thread_owns_progress_.store(thread, std::memory_order_relaxed);
    poller_.forget_polls();
  }
  bool owner_polls(Instant at) const {
    return !thread_owns_progress() && at - last_poll() < kStoppedAfter;
  }

  std::atomic<bool> thread_owns_progress_{true};
  std::atomic<Instant> last_poll_{};
  SteadyPoller poller_;
  bool missed_poll_ = false;  // the last check found no poll since missed_after_
  Instant missed_after_;
  AckDelay ack_delay_;
  Instant deferred_since_ = kNever;  // kNever: nothing is deferred
  Defer deferred_ = Defer::Nothing;
  Instant deferred_at_sleep_ = kNever;  // deferred_since_ when the thread fell asleep
  bool last_post_one_sided_ = false;
  bool waits_for_response_ = false;
  Prediction response_follows_{16, 4096};  // in posts; a failure costs 3 us
  BusyPollPolicy busy_poll_;
  uint64_t packets_sent_ = 0;  // when the thread fell asleep last
};

}  // namespace verbena::runtime
