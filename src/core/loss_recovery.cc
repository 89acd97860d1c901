// Losses, retransmissions, retries and timers of a requester.
#include "core/loss_recovery.h"

#include <utility>

namespace verbena::core {
namespace {

// The most PSNs of one request packet: the longest READ chunk in the smallest packets.
constexpr int32_t kMaxPsnsPerRequest = 256;

// The longest time between the end of a path and the failure of its requests.
constexpr Duration kMaxStranded = seconds(1);

}  // namespace

Duration rnr_delay(uint8_t code) {
  // In units of 10 us; the code 0 is the longest.
  static constexpr std::array<uint32_t, 32> kTensOfMicroseconds = {
      65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return microseconds(10) * kTensOfMicroseconds[code & 31];
}

Duration ack_timeout(uint8_t code) { return nanoseconds(4096) * (int64_t{1} << (code & 31)); }

void LossRecovery::start() {
  renew_retries();
  retries_.rnr_left = qp_.attr.rnr_retry;
}

void LossRecovery::reset() {
  if (qp_.peer != nullptr) qp_.peer->release(in_flight_bytes_);
  in_flight_bytes_ = 0;
  board_.reset();
  timers_.fill(kNever);
  retries_.tries = 0;
  sampler_.clear();
  probes_ = 0;
  probed_at_ = kNever;
  qp_.has_unwindowed_packet = is_probe_due_ = false;
  is_backoff_timer_ = was_retracted_ = is_stranded_ = false;
}

void LossRecovery::change_peer(PeerPath* peer) {
  if (qp_.peer != nullptr) qp_.peer->release(in_flight_bytes_);
  if (peer != nullptr) peer->on_sent(in_flight_bytes_);
  qp_.peer = peer;
}

// --- which packets are lost ----------------------------------------------------------------------

void LossRecovery::find_lost_responses(Instant now) {
  if (qp_.failure) return;
  bool found = false;
  cursor_.for_each_chunk(
      cursor_.unacked(), board_->executed, [&](const SendWqe& wqe, const Chunk& chunk) {
        if (!is_read_or_atomic(wqe.op)) return;
        for (wire::Psn psn = chunk.first; psn != chunk.end() && !qp_.failure; psn = psn + 1) {
          const Scoreboard::Entry& e = board_->at(psn);
          if (e.state != PacketState::InFlight) continue;
          const bool lost =
              e.is_requested_again ? is_overtaken(psn, now) : is_before(psn, board_->responded_to);
          if (!lost) continue;
          const bool likely = e.is_requested_again && board_->may_be_queued(psn);
          found |= lose(psn, now, likely ? LossIs::Likely : LossIs::Certain);
        }
      });
  if (!found) return;
  qp_.count(CounterId::implied_naks);
  restart_ack_timer(now);
}

bool LossRecovery::on_sequence_nak(const wire::Packet& nak, Instant now) {
  const wire::Psn psn = nak.bth.psn;
  if (is_before(psn, board_->executed)) return false;  // a later response overtook it
  if (qp_.extensions.peer_buffers_requests() && !nak.payload.empty()) {
    on_sack(nak, now);
    return false;
  }
  if (!lose(psn, now, LossIs::Certain)) return false;
  retransmit_from(psn, now);
  return true;
}

void LossRecovery::on_sack(const wire::Packet& nak, Instant now) {
  const auto is_listed = [&](wire::Psn psn) {
    return SackList::contains(nak.payload, nak.bth.psn, psn);
  };
  bool is_news = false;
  const auto record_listed = [&](const SendWqe& wqe, const Chunk& chunk) {
    if (!is_listed(chunk.first)) return;
    board_->record_received(chunk.first);
    // The request of a READ was received; its response was not.
    const PacketState state =
        is_read_or_atomic(wqe.op) ? PacketState::InFlight : PacketState::Received;
    for (wire::Psn psn = chunk.first; psn != chunk.end(); psn = psn + 1) {
      if (board_->at(psn).state == state) continue;
      set_state(psn, state, now);
      is_news = true;
    }
  };
  const auto find_lost = [&](const SendWqe&, const Chunk& chunk) {
    if (is_listed(chunk.first) || !is_overtaken(chunk.first, now)) return;
    const LossIs loss = board_->may_be_queued(chunk.first) ? LossIs::Likely : LossIs::Certain;
    for (wire::Psn psn = chunk.first; psn != chunk.end() && !qp_.failure; psn = psn + 1) {
      if (board_->at(psn).state == PacketState::InFlight) is_news |= lose(psn, now, loss);
    }
  };
  cursor_.for_each_chunk(board_->executed, cursor_.next(), record_listed);
  if (const auto sample = sampler_.on_received(is_listed, now)) {
    qp_.peer->on_round_trip(*sample, now);
  }
  cursor_.for_each_chunk(board_->executed, cursor_.next(), find_lost);
  if (!is_news) return;
  end_probes(now);
  restart_ack_timer(now);
}

void LossRecovery::retransmit_from(wire::Psn from, Instant now) {
  if (is_before(from, board_->executed)) from = board_->executed;
  for (wire::Psn psn = from; is_before(psn, cursor_.next()); psn = psn + 1) {
    set_state(psn, PacketState::Lost, now);
  }
  stop_ack_timer();
  // Responses to requests before `from`, which may fill the window.
  if (in_flight_bytes_ != 0) restart_ack_timer(now);
}

// A retransmitted packet has one round trip before it counts as lost. For the first outstanding
// one, which may cost a retry, the time doubles with each retransmission: queues in the network may
// have grown since the round trip was measured.
bool LossRecovery::is_overtaken(wire::Psn psn, Instant now) const {
  const bool is_first = psn == cursor_.unacked();
  const uint32_t doublings = is_first ? std::clamp(retries_.tries, 1u, 10u) - 1 : 0;
  return board_->is_overtaken(psn, now,
                              qp_.peer->round_trip.smoothed() * (int64_t{1} << doublings));
}

// False if no retry is left: the queue pair has failed.
bool LossRecovery::lose(wire::Psn psn, Instant now, LossIs loss) {
  if (psn == cursor_.unacked()) {
    if (loss == LossIs::Likely) {
      ++retries_.tries;
    } else if (!use_retry()) {
      return false;
    }
    qp_.has_unwindowed_packet = true;
  }
  report_loss(psn, now);
  set_state(psn, PacketState::Lost, now);
  return true;
}

// A packet that left after the last loss was found begins an episode of its own.
void LossRecovery::report_loss(wire::Psn psn, Instant now) {
  Scoreboard& board = *board_;
  if (Scoreboard::was_later(board.at(psn).sent, board.episode_end)) {
    board.episode_end = board.sends();
    board.episode = {.window = qp_.peer->window()};
  }
  const uint32_t bytes = cursor_.cost_of(psn);
  const bool discarded = !qp_.extensions.peer_buffers_requests();
  qp_.peer->on_lost({.bytes = bytes, .discarded = discarded, .now = now, .episode = board.episode});
  board.episode.bytes_lost += bytes;
  board.episode.discarded |= discarded;
}

// --- retransmitting ------------------------------------------------------------------------------

bool LossRecovery::is_full() const {
  const int32_t outstanding = cursor_.next().distance_from(cursor_.unacked());
  return outstanding + kMaxPsnsPerRequest > board_->capacity();
}

LossRecovery::Chunk LossRecovery::chunk_to_retransmit(wire::Psn psn) const {
  const SendCursor::Place at = cursor_.place_of(psn);
  const SendWqe& wqe = cursor_.queue().at(at.index);
  if (wqe.op != SendOp::Read) return cursor_.chunk_at(at);
  const uint32_t into = at.packet % wqe.chunk_packets;
  const Chunk whole = cursor_.chunk_at({at.index, at.packet - into});
  if (!is_before(whole.first, board_->executed)) return whole;
  if (!qp_.extensions.peer_buffers_requests()) {
    // A standard requester resumes at the first missing packet and requests all up to the end. Some
    // responders refuse a shorter range, or an earlier one afterwards.
    wire::Psn first = is_before(whole.first, cursor_.unacked()) ? cursor_.unacked() : whole.first;
    while (is_received(first)) first = first + 1;
    return cursor_.chunk_at(cursor_.place_of(first));
  }
  Chunk part{.at = at, .packets = 1, .first = psn};
  for (wire::Psn later = psn + 1; is_before(later, whole.end()); later = later + 1) {
    if (is_lost(later)) part.packets = static_cast<uint32_t>(later.distance_from(psn)) + 1;
  }
  return part;
}

// PSNs that the packet requests without need keep their state: a response may still be to the first
// request.
void LossRecovery::on_retransmitted(wire::Psn psn, const Chunk& chunk, Instant now) {
  const bool executed = is_before(psn, board_->executed);
  for (wire::Psn part = chunk.first; part != chunk.end(); part = part + 1) {
    const bool was_lost = is_lost(part);
    if (executed && !was_lost && part != psn) continue;
    if (was_lost) set_state(part, PacketState::InFlight, now);
    board_->record_retransmit(part, now);
    board_->at(part).is_requested_again = executed;
  }
  sampler_.clear();
  if (!is_set(Timer::Ack)) restart_ack_timer(now);
}

void LossRecovery::on_retracted() {
  qp_.peer->release(in_flight_bytes_);
  in_flight_bytes_ = 0;
  sampler_.clear();
  stop_ack_timer();
  was_retracted_ = true;
}

// Alternates between the last packet in flight and the first one. The last one reveals the gap to a
// peer that lost the end of a burst. The first one helps if the peer's NAK was lost, since the peer
// sends each NAK only once.
wire::OptionalPsn LossRecovery::choose_probe() const {
  const auto is_in_flight = [&](wire::Psn psn) {
    return board_->at(psn).state == PacketState::InFlight;
  };
  const wire::Psn next = cursor_.next();
  wire::Psn first = cursor_.unacked();
  while (first != next && !is_in_flight(first)) first = first + 1;
  if (first != next) {
    wire::Psn last = next - 1;
    while (!is_in_flight(last)) last = last - 1;
    return probes_ % 2 == 1 ? last : first;
  }
  if (board_->has_lost()) return std::nullopt;  // these are retransmitted when the window allows
  return cursor_.unacked();  // the peer has received everything but makes no progress
}

// --- the scoreboard ------------------------------------------------------------------------------

Scoreboard* LossRecovery::begin() {
  if (board_) return nullptr;
  board_ = std::make_unique<Scoreboard>(cursor_.unacked(), cursor_.next());
  if (!cursor_.has_outstanding()) return board_.get();
  const SendCursor::Place at = cursor_.place_of(cursor_.unacked());
  const SendWqe& wqe = cursor_.queue().at(at.index);
  const bool has_part = wqe.op == SendOp::Read && at.packet % wqe.chunk_packets != 0;
  if (has_part) board_->executed = cursor_.chunk_at(at).end();
  return board_.get();
}

void LossRecovery::end_if_over() {
  if (board_->is_over(cursor_.unacked())) {
    board_.reset();
  } else if (cursor_.has_outstanding() && is_lost(cursor_.unacked())) {
    qp_.has_unwindowed_packet = true;
  }
}

void LossRecovery::on_executed(wire::Psn end, Instant now) {
  if (!is_before(board_->executed, end)) return;
  sampler_.on_acked_before(end, now);
  // One response of a READ shows that all of its chunk was executed.
  end = cursor_.chunk_at(cursor_.place_of(end - 1)).end();
  cursor_.for_each_chunk(board_->executed, end, [&](const SendWqe& wqe, const Chunk& chunk) {
    const PacketState state =
        is_read_or_atomic(wqe.op) ? PacketState::InFlight : PacketState::Received;
    board_->record_received(chunk.first);
    for (wire::Psn psn = chunk.first; psn != chunk.end(); psn = psn + 1) {
      board_->at(psn).is_requested_again = false;
      set_state(psn, state, now);
    }
  });
  board_->executed = end;
}

void LossRecovery::on_response_buffered(wire::Psn psn, Instant now) {
  set_state(psn, PacketState::Received, now);
  end_probes(now);
  restart_ack_timer(now);
}

// Only packets in flight count against the window.
void LossRecovery::set_state(wire::Psn psn, PacketState state, Instant now) {
  const PacketState before = board_->at(psn).state;
  board_->set_state(psn, state);
  if ((before == PacketState::InFlight) == (state == PacketState::InFlight)) return;
  const uint32_t bytes = cursor_.cost_of(psn);
  if (state == PacketState::InFlight) return add_in_flight(bytes);
  in_flight_bytes_ -= bytes;
  if (state == PacketState::Received) {
    qp_.peer->on_acked(bytes, is_marked_, now);
  } else {
    qp_.peer->release(bytes);
  }
}

// `packets` PSNs from the first outstanding one on leave the scoreboard.
void LossRecovery::remove_from_scoreboard(uint32_t packets, Instant now) {
  const wire::Psn end = cursor_.unacked() + packets;
  for (wire::Psn psn = cursor_.unacked(); psn != end; psn = psn + 1) {
    board_->record_received(psn);
    set_state(psn, PacketState::Received, now);
    board_->set_state(psn, PacketState::InFlight);
  }
}

// --- progress and retries ------------------------------------------------------------------------

void LossRecovery::on_head_accessed() {
  stop_ack_timer();
  retries_.tries = 0;
  renew_retries();
  was_retracted_ = is_backoff_timer_ = false;
}

bool LossRecovery::use_retry() {
  ++retries_.tries;
  if (retries_.left == 0) {
    qp_.count(CounterId::retry_exceeded);
    fail_head(WcStatus::RetryExceeded);
    return false;
  }
  --retries_.left;
  return true;
}

bool LossRecovery::use_rnr_retry(Instant now) {
  if (is_waiting_for_receiver(now)) return false;
  ++retries_.tries;
  // The peer received the request and responded, so this does not count against retry_cnt.
  // (Soft-RoCE also sends NAKs for the packets behind it, now or after the wait.)
  renew_retries();
  constexpr uint8_t kForever = 7;
  if (qp_.attr.rnr_retry == kForever) return true;
  if (retries_.rnr_left == 0) {
    qp_.count(CounterId::rnr_retry_exceeded);
    fail_head(WcStatus::RnrRetryExceeded);
    return false;
  }
  --retries_.rnr_left;
  return true;
}

void LossRecovery::fail_head(WcStatus status) {
  if (qp_.failure) return;
  const SendWqe& wqe = cursor_.queue().front();
  QpFailure& f = qp_.fail(status);
  f.op = wqe.op;
  f.wr_id = wqe.wr_id;
  f.length = wqe.length;
  f.remote_address = wqe.remote_address;
  f.rkey = wqe.rkey;
  f.psn = cursor_.unacked().value();
  f.retries = retries_.tries;
  f.memory_ended = is_stranded_;
}

// --- time ----------------------------------------------------------------------------------------

void LossRecovery::on_deadline(Instant now) {
  if (is_due(Timer::Rnr, now)) {
    stop(Timer::Rnr);
    // During the wait the peer may have reported all requests as executed: nothing is retransmitted
    // then, but responses are outstanding.
    if (!is_set(Timer::Ack) && !(board_ && board_->has_lost())) restart_ack_timer(now);
  }
  if (is_due(Timer::Ack, now)) return on_ack_timeout(now);
  if (!is_due(Timer::Probe, now) || is_stranded_) return;
  ++probes_;
  sampler_.clear();  // this silence is no round trip
  qp_.has_unwindowed_packet = is_probe_due_ = true;
  set(Timer::Probe, probe_time(now));
}

void LossRecovery::on_ack_timeout(Instant now) {
  if (is_stranded_) return fail_head(WcStatus::RetryExceeded);
  stop_ack_timer();
  sampler_.clear();
  probes_ = 0;
  probed_at_ = kNever;
  if (cursor_.queue().empty()) return;
  qp_.count(CounterId::timeouts);
  ++retries_.timeouts_in_a_row;
  if (!use_retry() || !cursor_.has_outstanding()) return;
  qp_.peer->on_timed_out(now);
  board_->episode_end = board_->sends();
  cursor_.for_each_chunk(cursor_.unacked(), board_->executed,
                         [&](const SendWqe& wqe, const Chunk& chunk) {
                           if (!is_read_or_atomic(wqe.op)) return;
                           for (wire::Psn psn = chunk.first; psn != chunk.end(); psn = psn + 1) {
                             const bool in_flight = board_->at(psn).state == PacketState::InFlight;
                             if (in_flight) set_state(psn, PacketState::Lost, now);
                           }
                         });
  // This also covers a peer that no longer has the packets that it once listed.
  retransmit_from(board_->executed, now);
}

void LossRecovery::strand(Instant now) {
  stop_ack_timer();
  stop(Timer::Rnr);
  is_stranded_ = true;
  const bool has_timeout = qp_.attr.timeout != 0;
  const Duration wait = has_timeout ? ack_timeout(qp_.attr.timeout) : kUnresponsiveAfter;
  set(Timer::Ack, now + std::clamp(wait, kUnresponsiveAfter, kMaxStranded));
}

void LossRecovery::start_backoff_timer(Instant now) {
  set(Timer::Ack, now + ack_timeout(qp_.attr.timeout));
  is_backoff_timer_ = true;
}

void LossRecovery::end_backoff(Instant now) {
  if (std::exchange(is_backoff_timer_, false)) restart_ack_timer(now);
}

void LossRecovery::restart_ack_timer(Instant now) {
  if (is_stranded_) [[unlikely]] {
    if (cursor_.has_outstanding() || cursor_.is_inside_request()) return;
    is_stranded_ = false;  // the peer has answered everything
  }
  const bool has_timeout = qp_.attr.timeout != 0;
  if (!cursor_.has_outstanding() || (!has_timeout && !qp_.peer->is_in_memory())) {
    return stop_ack_timer();
  }
  // The specification allows a wait of up to four times the timeout. The wait grows to that while
  // there is no response: the process of a software peer may not get a CPU for a while.
  const int64_t longer = int64_t{1} << std::min(retries_.timeouts_in_a_row, 2u);
  set(Timer::Ack, has_timeout ? now + ack_timeout(qp_.attr.timeout) * longer : kNever);
  set(Timer::Probe, probe_time(now));
}

// The wait doubles with each probe in a row. No probe is sent at or after the ACK timeout.
Instant LossRecovery::probe_time(Instant now) const {
  if (qp_.peer->is_in_memory()) return unresponsive_time(now);  // nothing is lost there
  const bool losses = board_ && board_->episode_end != 0;
  const auto late = qp_.peer->round_trip.probe_timeout(losses, ack_timeout(qp_.attr.timeout));
  if (!late || probes_ > 16) return kNever;
  const Instant time = now + *late * (int64_t{1} << probes_);
  return time < at(Timer::Ack) ? time : kNever;
}

// Before the ACK timeout, because retransmitted requests cannot be retracted. Only once for each
// request, so that the ACK timeout is not deferred without limit.
Instant LossRecovery::unresponsive_time(Instant now) const {
  if (was_retracted_ || board_) return kNever;
  if (qp_.attr.timeout == 0) return now + kUnresponsiveAfter;
  return now + std::min(kUnresponsiveAfter, ack_timeout(qp_.attr.timeout) * 3 / 4);
}

// The peer responded.
void LossRecovery::end_probes(Instant now) {
  probes_ = 0;
  if (probed_at_ == kNever) return;
  qp_.peer->round_trip.on_response_after_probe(now - probed_at_);
  probed_at_ = kNever;
}

}  // namespace verbena::core
