// The decisions that are not needed for every packet.
#include "runtime/progress_policy.h"

#include "core/loss_recovery.h"

namespace verbena::runtime {
namespace {

// A virtual CPU that was not scheduled looks like an application that stopped polling, so a second
// check follows after this time.
constexpr Duration kSecondCheck = microseconds(50);
// Longest sleep after packets were sent, so that a post need not wake the thread for its ACK
// timeout. Programs use timeouts above this (2^14 * 4 us = 67 ms).
constexpr Duration kLongestActiveSleep = milliseconds(50);
static_assert(kLongestActiveSleep < core::kUnresponsiveAfter,
              "otherwise each check of a peer would have to wake the thread");

}  // namespace

bool ProgressPolicy::must_wake_thread(Instant at, bool has_more, Instant sleeps_until) {
  if (!has_deferred()) return has_more;
  poller_.met_poller();
  // If the application does not send the delayed ACK in time, the background thread sends it.
  return has_more || sleeps_until > at + ack_delay_.length();
}

// Two programs that write into each other's memory in turn, and spin on their own memory meanwhile,
// need a system call for each WRITE as long as neither polls. If the call that posts a WRITE polls
// for a moment, the peer finds this process awake and sends a packet. The peer then polls for the
// completion of its own WRITE. Its ACK waits for the next WRITE of this process, so the peer polls
// when that WRITE is received. From then on both always poll.
bool ProgressPolicy::begin_response_wait(bool announced) {
  waits_for_response_ = announced || (!thread_owns_progress() && response_follows_.try_now());
  return waits_for_response_;
}

void ProgressPolicy::end_response_wait(bool received) {
  waits_for_response_ = false;
  if (received) {
    response_follows_.succeeded();
  } else {
    response_follows_.failed();
  }
}

Instant ProgressPolicy::sleep_until(Instant at, Instant deadline, uint64_t packets_sent) {
  Instant until = deadline;
  deferred_at_sleep_ = kNever;
  if (!thread_owns_progress()) {
    until = std::min(until, at + (missed_poll_ ? kSecondCheck : kPollCheckInterval));
  } else if (has_deferred()) {
    deferred_at_sleep_ = deferred_since_;
    until = std::min(until, deferred_since_ + ack_delay_.length());
  }
  if (packets_sent != packets_sent_) until = std::min(until, at + kLongestActiveSleep);
  packets_sent_ = packets_sent;
  return until;
}

bool ProgressPolicy::may_sleep_on(Instant at) {
  if (!owner_polls(at)) return false;
  poller_.passed_check();
  return true;
}

// If the background thread took the packets, the polling thread would see their completions later
// than if it received them itself.
bool ProgressPolicy::leaves_packets_to_poller(Instant woke_at) {
  if (thread_owns_progress()) return false;
  const bool polls = owner_polls(woke_at);
  missed_poll_ = !polls && missed_after_ != last_poll();
  missed_after_ = last_poll();
  return polls || missed_poll_;
}

bool ProgressPolicy::leaves_ack_delayed(Instant woke_at, bool packets_announced, Instant deadline) {
  const bool knew_of_deferral = deferred_at_sleep_ != kNever;
  if (knew_of_deferral) ack_delay_.reply_followed(deferred_since_ != deferred_at_sleep_);
  if (!thread_owns_progress() || !has_delayed_ack() || deferred_since_ == deferred_at_sleep_) {
    return false;
  }
  // A poll took the packets that woke the thread, or woke the thread itself; a reply is expected.
  const bool poller_took_packets = !packets_announced || deferred_since_ >= woke_at;
  const bool has_time = woke_at - deferred_since_ < ack_delay_.length() && deadline > woke_at;
  if (poller_took_packets && has_time) return true;
  if (!knew_of_deferral) ack_delay_.reply_followed(false);
  return false;
}

bool ProgressPolicy::end_round(bool packets_announced, bool polled_just_before, bool found) {
  if (!thread_owns_progress()) {
    if (found) poller_.failed_check();
    return true;
  }
  poller_.pass_wakeup();
  if (packets_announced && polled_just_before) poller_.met_poller();
  if (packets_announced && !polled_just_before) poller_.met_no_poller();
  return false;
}

}  // namespace verbena::runtime
