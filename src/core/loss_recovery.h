// LossRecovery: which packets of a requester are in flight, which are lost, and until when a
// response is awaited. It decides; the requester sends. There is one rule: a packet is lost when
// one that left after it has reached the peer, or when no response is received for too long.
//
//   received                          retransmitted
//   --------------------------------  -----------------------------------------------------------
//   sequence NAK                      all requests from its PSN on: the peer discarded them
//   sequence NAK with a SACK list     requests that the list lacks, sent before one that it has
//   a response or an ACK              READs and atomics whose response is overtaken, and of those
//                                     only the missing part
//   RNR NAK                           all requests from its PSN on, after the wait
//   nothing for a few round trips     one packet (a tail-loss probe); costs no retry
//   nothing for the ACK timeout       all packets that are not known to have been received
//
// Why peers differ, and how a Verbena is recognised: docs/design/extensions.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/time.h"
#include "core/qp_common.h"
#include "core/round_trip_sampler.h"
#include "core/scoreboard.h"
#include "core/send_cursor.h"
#include "core/work_queue.h"
#include "wire/packet.h"

namespace verbena::core {

// AETH's 5-bit RNR timer code (IBA table 45).
Duration rnr_delay(uint8_t code);
// Local ACK timeout: 4.096 us * 2^code, 0 = none.
Duration ack_timeout(uint8_t code);

// A peer that has read nothing for this long is stopped, or does not get a CPU.
inline constexpr Duration kUnresponsiveAfter = milliseconds(55);

class LossRecovery {
 public:
  using Chunk = SendCursor::Chunk;

  enum class Timer : uint8_t {
    Ack,    // the ACK timeout, which costs a retry
    Probe,  // the probe timeout; in shared memory: the peer counts as unresponsive
    Rnr,    // the wait that an RNR NAK asked for
    kCount
  };

  LossRecovery(QpCommon& qp, SendCursor& cursor) : qp_(qp), cursor_(cursor) {}

  void start();
  // Nothing is in flight any more, and nothing is awaited.
  void reset();
  // The bytes in flight count against the window of this path from now on (null: of none).
  void change_peer(PeerPath* peer);

  // --- sending ----------------------------------------------------------------------------------
  // The cursor is behind the chunk already.
  void on_sent(const Chunk& chunk, Instant now) {
    add_in_flight(cursor_.cost_of(chunk));
    if (is_active()) [[unlikely]]
      board_->record_sent(chunk.first, chunk.end());
    start_timers(chunk.first, now);
  }
  // The same in two steps.
  void add_in_flight(uint32_t bytes) {
    qp_.peer->on_sent(bytes);
    in_flight_bytes_ += bytes;
  }
  void start_timers(wire::Psn first, Instant now) {
    // Through shared memory nothing depends on the round trip.
    if (!qp_.peer->is_in_memory()) sampler_.on_sent(first, now);
    if (!is_set(Timer::Ack)) restart_ack_timer(now);
  }
  // The packet to send so that the peer receives `psn`, or responds to it.
  Chunk chunk_to_retransmit(wire::Psn psn) const;
  void on_retransmitted(wire::Psn psn, const Chunk& chunk, Instant now);
  // All outstanding requests were retracted: the peer has read none of them and never will.
  void on_retracted();

  // --- responses --------------------------------------------------------------------------------
  // A response is about to be handled. `marked`: all that it acknowledges counts as marked (CE).
  void begin_response(bool marked) { is_marked_ = marked; }
  // `packets` PSNs of the request at the head are done. The cursor follows.
  void on_acked(uint32_t packets, Instant now) {
    if (is_active()) [[unlikely]] {
      remove_from_scoreboard(packets, now);
    } else {
      const SendWqe& wqe = cursor_.queue().front();
      const auto first = static_cast<uint32_t>(cursor_.unacked().distance_from(wqe.first_psn));
      const uint32_t bytes = SendCursor::cost_of(wqe, first, packets);
      qp_.peer->on_acked(bytes, is_marked_, now);
      in_flight_bytes_ -= bytes;
    }
    cursor_.acknowledge(packets);
    const auto sample = sampler_.on_acked_before(cursor_.unacked(), now);
    if (sample && !is_active()) qp_.peer->on_round_trip(*sample, now);  // no wait for a gap
    retries_.tries = 0;
    renew_retries();
    retries_.rnr_left = qp_.attr.rnr_retry;
    stop(Timer::Rnr);
    end_probes(now);
    was_retracted_ = false;
    restart_ack_timer(now);
  }
  // The request at the head was done by one-sided access.
  void on_head_accessed();
  // The peer has executed all requests before `end`.
  void on_executed(wire::Psn end, Instant now);
  bool was_executed(wire::Psn psn) const { return is_before(psn, board_->executed); }
  // A response to `psn`, or an ACK of the one before it, was received.
  void on_responded_to(wire::Psn psn) {
    if (is_before(board_->responded_to, psn)) board_->responded_to = psn;
  }
  // A response was received and waits for one before it.
  void on_response_buffered(wire::Psn psn, Instant now);
  // Responses leave the peer in PSN order, unless they were requested again: those leave when that
  // request is received.
  void find_lost_responses(Instant now);
  // True: all requests from its PSN on are to be retransmitted.
  bool on_sequence_nak(const wire::Packet& nak, Instant now);
  // False: the wait of an earlier RNR NAK still runs, or no retry is left.
  bool use_rnr_retry(Instant now);
  void wait_for_receiver(Instant until) { set(Timer::Rnr, until); }
  // All requests from `from` on, none of which the peer has executed.
  void retransmit_from(wire::Psn from, Instant now);

  // --- the scoreboard ---------------------------------------------------------------------------
  // It exists from the first sign of a loss until no outstanding packet is lost, buffered or
  // retransmitted. The functions above that are about lost packets need it.
  bool is_active() const { return board_ != nullptr; }
  // The new scoreboard, which assumes that packets left in PSN order; null if one exists.
  Scoreboard* begin();
  void end_if_over();
  bool has_lost() const { return is_active() && board_->has_lost(); }
  int32_t lost() const { return board_->lost(); }
  wire::Psn first_lost() const { return board_->first_lost(cursor_.unacked()); }
  bool is_received(wire::Psn psn) const { return board_->at(psn).state == PacketState::Received; }
  bool is_lost(wire::Psn psn) const { return board_->at(psn).state == PacketState::Lost; }
  wire::Psn executed() const { return board_->executed; }
  void record_received(wire::Psn psn) { board_->record_received(psn); }
  // No new request fits.
  bool is_full() const;

  // --- time -------------------------------------------------------------------------------------
  Instant deadline() const {
    Instant earliest = kNever;
    for (const Instant timer : timers_) earliest = std::min(earliest, timer);
    return earliest;
  }
  bool is_set(Timer timer) const { return at(timer) != kNever; }
  bool is_due(Timer timer, Instant now) const { return now >= at(timer); }
  bool is_waiting_for_receiver(Instant now) const {
    return is_set(Timer::Rnr) && now < at(Timer::Rnr);
  }
  void end_wait_for_receiver() { stop(Timer::Rnr); }
  void on_deadline(Instant now);
  // The path is full, so no packet can leave. The ACK timeout runs, as for a peer that does not
  // respond.
  bool needs_backoff_timer() const { return !is_set(Timer::Ack) && qp_.attr.timeout != 0; }
  void start_backoff_timer(Instant now);
  void end_backoff(Instant now);

  // --- a path that has ended --------------------------------------------------------------------
  // The outstanding requests can neither be answered nor leave again. The failure is not reported
  // at once: with hardware, the end of a peer takes as long as an ACK timeout to notice, and
  // programs end in the belief that their last messages need no answer.
  void strand(Instant now);
  bool is_stranded() const { return is_stranded_; }

  // --- tail-loss probes -------------------------------------------------------------------------
  bool is_probe_due() const { return is_probe_due_; }
  // Empty: a probe is of no use now.
  wire::OptionalPsn choose_probe() const;
  void cancel_probe() { is_probe_due_ = false; }
  void on_probe_sent(Instant now) { probed_at_ = now; }

  // Retries without progress.
  uint32_t tries() const { return retries_.tries; }
  // Records the failure of the request at the head, which moves the queue pair to ERROR.
  void fail_head(WcStatus status);

 private:
  struct Retries {
    uint32_t left = 0;
    uint32_t rnr_left = 0;
    uint32_t timeouts_in_a_row = 0;
    uint32_t tries = 0;
  };

  Instant at(Timer timer) const { return timers_[static_cast<size_t>(timer)]; }
  void set(Timer timer, Instant at) { timers_[static_cast<size_t>(timer)] = at; }
  void stop(Timer timer) { set(timer, kNever); }
  void stop_ack_timer() {
    if (is_stranded_) return;  // the timer of strand() runs
    stop(Timer::Ack);
    stop(Timer::Probe);
  }
  void restart_ack_timer(Instant now);
  Instant probe_time(Instant now) const;
  Instant unresponsive_time(Instant now) const;
  void on_ack_timeout(Instant now);

  void on_sack(const wire::Packet& nak, Instant now);
  bool is_overtaken(wire::Psn psn, Instant now) const;
  // A likely loss costs no retry.
  enum class LossIs : bool { Likely, Certain };
  bool lose(wire::Psn psn, Instant now, LossIs loss);
  void report_loss(wire::Psn psn, Instant now);
  bool use_retry();
  void renew_retries() {
    retries_.left = qp_.attr.retry_count;
    retries_.timeouts_in_a_row = 0;
  }
  void set_state(wire::Psn psn, PacketState state, Instant now);
  [[gnu::cold, gnu::noinline]] void remove_from_scoreboard(uint32_t packets, Instant now);
  void end_probes(Instant now);

  QpCommon& qp_;
  SendCursor& cursor_;
  std::unique_ptr<Scoreboard> board_;
  std::array<Instant, static_cast<size_t>(Timer::kCount)> timers_{kNever, kNever, kNever};
  Retries retries_;
  bool is_marked_ = false;         // the response that is being handled
  uint32_t in_flight_bytes_ = 0;   // this queue pair's part of PeerPath's
  bool is_backoff_timer_ = false;  // Timer::Ack runs for a packet that cannot leave
  bool was_retracted_ = false;     // the request at the head was retracted once
  bool is_probe_due_ = false;
  bool is_stranded_ = false;
  uint32_t probes_ = 0;         // in a row, without a response
  Instant probed_at_ = kNever;  // the last of them
  RoundTripSampler sampler_;
};

}  // namespace verbena::core
