// Which packets the requester sends again, and why. There is one rule: a packet is lost when
// something that left after it has arrived, or when nothing is heard for too long.
//
//   what is heard                        what is sent again
//   -----------------------------------  ----------------------------------------------------------
//   NAK sequence error, plain            all requests from its PSN on: the peer threw them away
//   the same with a list (selective)     requests that the list lacks, sent before one that it has
//   an answer, or an acknowledgement     answers to READs and atomics that should have come before:
//                                        only what is missing is asked for again
//   RNR NAK                              all requests from its PSN on, after the wait
//   nothing for a few round trips        one packet, to hear something (a probe); costs no retry
//   nothing for the local ACK timeout    everything that is not known to have arrived
//
// Why peers differ, and how a selective one is recognised: docs/design/extensions.md.
#include <algorithm>
#include <utility>

#include "core/requester.h"

namespace verbena::core {
namespace {

// A single new request takes no more PSNs than this: a READ's longest piece in its smallest
// packets.
constexpr int32_t kMostPsnsPerRequest = 256;

bool is_before(wire::Psn a, wire::Psn b) { return a.distance_from(b) < 0; }

}  // namespace

// --- which packets are lost ----------------------------------------------------------------------

// The peer has executed all requests before `end`, but an answer of one of them is missing, or was.
void Requester::acknowledge_late(wire::Psn end, Instant now) {
  begin_recovery();
  learn_executed(end, now);
  if (is_before(board_->answered_to, end)) board_->answered_to = end;
  settle_in_order(now);
  find_lost_answers(now);
  end_recovery_if_over();
}

// An answer, while another that should have come before it is missing.
void Requester::on_late_data(const wire::Packet& p, Instant now) {
  begin_recovery();
  const wire::Psn psn = p.bth.psn;
  const Place at = place_of(psn);
  const bool asked_for = is_read_or_atomic(queue_.at(at.index).op);
  if (!asked_for || board_->at(psn).fate == Fate::Arrived) {
    qp_.count(CounterId::stale_responses);
    return;
  }
  learn_executed(piece_at(at).end(), now);
  board_->know_arrived(psn);
  if (is_before(board_->answered_to, psn)) board_->answered_to = psn;
  settle_in_order(now);
  if (qp_.failure) return;
  if (psn == unacked_) {
    take_answer(p, now);
    settle_in_order(now);
  } else if (answers_.put(unacked_, p)) {
    qp_.count(CounterId::answers_held);
    set_fate(psn, Fate::Arrived);
    end_probes(now);
    restart_ack_timer(now);
  }
  find_lost_answers(now);
  end_recovery_if_over();
}

// Answers leave the peer in the order of their PSNs, unless they were asked for again: those leave
// when that request arrives.
void Requester::find_lost_answers(Instant now) {
  if (qp_.failure) return;
  bool found = false;
  for_each_piece(unacked_, board_->executed, [&](const SendWqe& wqe, const Piece& piece) {
    if (!is_read_or_atomic(wqe.op)) return;
    for (wire::Psn psn = piece.first; psn != piece.end() && !qp_.failure; psn = psn + 1) {
      const Scoreboard::Entry& e = board_->at(psn);
      if (e.fate != Fate::UnderWay) continue;
      const bool lost = e.asked_again ? overtaken(psn, now) : is_before(psn, board_->answered_to);
      if (lost) found |= lose(psn, now);
    }
  });
  if (!found) return;
  qp_.count(CounterId::implied_naks);
  restart_ack_timer(now);
}

void Requester::on_sequence_nak(const wire::Packet& p, Instant now) {
  begin_recovery();
  if (is_before(p.bth.psn, board_->executed)) return;  // it was overtaken by better news
  if (qp_.extensions.peer_buffers_requests() && !p.payload.empty()) return on_selective_nak(p, now);
  if (lose(p.bth.psn, now)) send_all_again_from(p.bth.psn);
}

// The packet's payload is a SACK list.
void Requester::on_selective_nak(const wire::Packet& p, Instant now) {
  const auto listed = [&](wire::Psn psn) { return SackList::contains(p.payload, p.bth.psn, psn); };
  bool news = false;
  for_each_piece(board_->executed, next_, [&](const SendWqe& wqe, const Piece& piece) {
    if (!listed(piece.first)) return;
    board_->know_arrived(piece.first);
    // That a READ's request has arrived is not yet its answer.
    const Fate fate = is_read_or_atomic(wqe.op) ? Fate::UnderWay : Fate::Arrived;
    for (wire::Psn psn = piece.first; psn != piece.end(); psn = psn + 1) {
      if (board_->at(psn).fate == fate) continue;
      set_fate(psn, fate);
      news = true;
    }
    if (timed_ == piece.first) end_measurement(now);
  });
  for_each_piece(board_->executed, next_, [&](const SendWqe&, const Piece& piece) {
    if (listed(piece.first) || !overtaken(piece.first, now)) return;
    for (wire::Psn psn = piece.first; psn != piece.end() && !qp_.failure; psn = psn + 1) {
      if (board_->at(psn).fate == Fate::UnderWay) news |= lose(psn, now);
    }
  });
  if (!news) return;
  end_probes(now);
  restart_ack_timer(now);
}

void Requester::on_deadline(Instant now) {
  if (rnr_until_ != kNever && now >= rnr_until_) rnr_until_ = kNever;
  if (now >= ack_deadline_) return on_timeout(now);
  if (now < probe_deadline_) return;
  ++probes_;
  timed_.reset();  // this silence is no round trip
  qp_.urgent = probe_due_ = true;
  probe_deadline_ = probe_time(now);
}

void Requester::on_timeout(Instant now) {
  // What needs memory comes first: without any, the timeout is still due.
  if (!queue_.empty() && unacked_ != next_) begin_recovery();
  stop_ack_timer();
  timed_.reset();
  probes_ = 0;
  probed_at_ = kNever;
  if (queue_.empty()) return;
  qp_.count(CounterId::timeouts);
  ++timeouts_in_a_row_;
  constexpr uint32_t kMost = 15;  // nothing is left to sort long before
  if (!batches_.empty()) batch_timeouts_ = std::min(batch_timeouts_ + 1, kMost);
  if (!use_up_retry() || unacked_ == next_) return;
  qp_.peer->on_timed_out(now);
  board_->episode_end = board_->sends();
  for_each_piece(unacked_, board_->executed, [&](const SendWqe& wqe, const Piece& piece) {
    if (!is_read_or_atomic(wqe.op)) return;
    for (wire::Psn psn = piece.first; psn != piece.end(); psn = psn + 1) {
      if (board_->at(psn).fate == Fate::UnderWay) set_fate(psn, Fate::Lost);
    }
  });
  // Should the peer not have what it once listed, this is where we find out.
  send_all_again_from(board_->executed);
}

// A peer that takes nothing is no better than one that does not answer: time passes for what cannot
// even leave.
void Requester::on_hold(Instant now) {
  if (ack_deadline_ != kNever || qp_.attr.timeout == 0) return;
  if (!qp_.urgent && blocked_reason(now) != Blocked::No) return;
  ack_deadline_ = now + ack_timeout(qp_.attr.timeout);
  timed_hold_ = true;
}

void Requester::on_room(Instant now) {
  if (std::exchange(timed_hold_, false)) restart_ack_timer(now);
}

// What was cut for a wider way cannot leave any more, nor be cut anew: the peer counts its packets.
void Requester::on_narrow_path() {
  const uint32_t most = wire::bytes_of(qp_.attr.path_mtu);
  for (uint64_t i = queue_.head(); i != queue_.tail() && queue_.at(i).numbered; ++i) {
    const SendWqe& wqe = queue_.at(i);
    const bool too_wide = wqe.cut_bytes > most && wqe.length > most && !is_atomic(wqe.op);
    if (!too_wide) continue;
    fail_head(WcStatus::RetryExceeded);
    qp_.failure->memory_ended = true;
    return;
  }
}

// All requests from `from` on, none of which the peer has executed.
void Requester::send_all_again_from(wire::Psn from) {
  begin_recovery();
  if (is_before(from, board_->executed)) from = board_->executed;
  for (wire::Psn psn = from; is_before(psn, next_); psn = psn + 1) set_fate(psn, Fate::Lost);
  since_ack_request_ = 0;
  stop_ack_timer();
}

// A repeat has a round trip's time; the first packet, which costs a retry, twice as long each time:
// the queue on the way may have grown since round trips were measured.
bool Requester::overtaken(wire::Psn psn, Instant now) {
  const uint32_t doublings = psn == unacked_ ? std::clamp(tries_, 1u, 10u) - 1 : 0;
  return board_->overtaken(psn, now, qp_.peer->round_trip.usual() * (int64_t{1} << doublings));
}

// False if there is no retry left for it: the queue pair has failed.
bool Requester::lose(wire::Psn psn, Instant now) {
  if (psn == unacked_) {
    if (!use_up_retry()) return false;
    qp_.urgent = true;
  }
  report_loss(psn, now);
  set_fate(psn, Fate::Lost);
  return true;
}

// A packet that left after the last loss was found begins an episode of its own.
void Requester::report_loss(wire::Psn psn, Instant now) {
  Scoreboard& board = *board_;
  if (Scoreboard::was_later(board.at(psn).sent, board.episode_end)) {
    board.episode_end = board.sends();
    board.episode = {.window = qp_.peer->window()};
  }
  const Place at = place_of(psn);
  const uint32_t cost = cost_of(queue_.at(at.index), at.packet, 1);
  const bool discarded = !qp_.extensions.peer_buffers_requests();
  qp_.peer->on_lost({.bytes = cost, .discarded = discarded, .now = now, .episode = board.episode});
  board.episode.bytes_lost += cost;
  board.episode.discarded |= discarded;
}

bool Requester::use_up_retry() {
  ++tries_;
  if (retries_left_ == 0) {
    qp_.count(CounterId::retry_exceeded);
    fail_head(WcStatus::RetryExceeded);
    return false;
  }
  --retries_left_;
  return true;
}

// --- sending them again --------------------------------------------------------------------------

Requester::Blocked Requester::lost_blocked() {
  const uint64_t index = place_of(board_->first_lost(unacked_)).index;
  if (denied_ == index) return index == queue_.head() ? Blocked::No : Blocked::Order;
  return qp_.peer->has_room() ? Blocked::No : Blocked::Window;
}

bool Requester::board_full() const {
  return next_.distance_from(unacked_) + kMostPsnsPerRequest > board_->capacity();
}

bool Requester::send_again(wire::PacketSink& sink, Instant now) {
  const wire::Psn psn = board_->first_lost(unacked_);
  if (!repeat(psn, sink, board_->lost() == 1, now)) return false;
  qp_.count(CounterId::retransmitted_packets);
  return true;
}

// What to send so that `psn` arrives, or is answered.
Requester::Piece Requester::piece_to_repeat(wire::Psn psn) {
  Place at = place_of(psn);
  const SendWqe& wqe = queue_.at(at.index);
  if (wqe.op != SendOp::Read) return piece_at(at);
  const uint32_t into = at.packet % wqe.piece_packets;
  const Piece whole = piece_at({at.index, at.packet - into});
  if (!is_before(whole.first, board_->executed)) return whole;
  if (!qp_.extensions.peer_buffers_requests()) {
    // As a plain requester resumes after a loss: from the first packet that is missing to the end.
    // Some responders refuse a shorter range, or an earlier one afterwards.
    wire::Psn first = is_before(whole.first, unacked_) ? unacked_ : whole.first;
    while (board_->at(first).fate == Fate::Arrived) first = first + 1;
    return piece_at(place_of(first));
  }
  Piece part{.at = at, .packets = 1, .first = psn};
  for (wire::Psn later = psn + 1; is_before(later, whole.end()); later = later + 1) {
    if (board_->at(later).fate != Fate::Lost) continue;
    part.packets = static_cast<uint32_t>(later.distance_from(psn)) + 1;
  }
  return part;
}

// Sends what makes `psn` arrive. What the same packet asks for beyond that, without need, changes
// nothing in the books: an answer may still be to the first request.
bool Requester::repeat(wire::Psn psn, wire::PacketSink& sink, bool ask_for_ack, Instant now) {
  Piece piece = piece_to_repeat(psn);
  piece.repeated = true;
  if (!push_request(piece, sink, ask_for_ack)) return false;
  const bool executed = is_before(psn, board_->executed);
  for (wire::Psn part = piece.first; part != piece.end(); part = part + 1) {
    const bool was_lost = board_->at(part).fate == Fate::Lost;
    if (executed && !was_lost && part != psn) continue;
    if (was_lost) set_fate(part, Fate::UnderWay);
    board_->record_sent_again(part, now);
    board_->at(part).asked_again = executed;
    if (timed_ == part) timed_.reset();  // which of them an answer is to, nobody could tell
  }
  if (ack_deadline_ == kNever) restart_ack_timer(now);
  return true;
}

// One packet leaves whether or not the window has room, which may be full of what waits for it: the
// very first one that is missing, or a probe.
uint32_t Requester::send_urgent(wire::PacketSink& sink, Instant now) {
  if (sink.room() == 0) return 0;
  qp_.urgent = false;
  const bool waits = rnr_until_ != kNever && now < rnr_until_;
  if (!started_ || waits || unacked_ == next_ || qp_.failure) return 0;
  if (probe_due_ && qp_.peer->is_in_memory() && !board_) {
    retract(sink, now);
    return 0;
  }
  qp_.urgent = true;  // it remains so if there is no memory
  begin_recovery();
  qp_.urgent = false;
  if (board_->at(unacked_).fate == Fate::Lost) {
    return send_again(sink, now) ? 1 : 0;
  }
  if (!std::exchange(probe_due_, false)) return 0;
  const auto psn = choose_probe();
  if (!psn || !repeat(*psn, sink, true, now)) return 0;
  qp_.count(CounterId::probes_sent);
  probed_at_ = now;
  return 1;
}

// In turns the last packet under way and the first one. The last one shows a peer that lost the end
// of a train what it lacks; the first one brings on a peer whose NAK got lost, since it says each
// only once.
std::optional<wire::Psn> Requester::choose_probe() {
  const auto under_way = [&](wire::Psn psn) { return board_->at(psn).fate == Fate::UnderWay; };
  wire::Psn first = unacked_;
  while (first != next_ && !under_way(first)) first = first + 1;
  if (first != next_) {
    wire::Psn last = next_ - 1;
    while (!under_way(last)) last = last - 1;
    return probes_ % 2 == 1 ? last : first;
  }
  if (board_->anything_lost())
    return std::nullopt;  // they wait for the window, and will be heard of
  return unacked_;        // the peer says it has everything, and is not getting on
}

// --- the books -----------------------------------------------------------------------------------

void Requester::begin_recovery() {
  if (board_) return;
  board_ = std::make_unique<Scoreboard>(unacked_, next_);
  if (unacked_ == next_) return;
  recall_order();
  const Place at = place_of(unacked_);
  const SendWqe& wqe = queue_.at(at.index);
  const bool partly_answered = wqe.op == SendOp::Read && at.packet % wqe.piece_packets != 0;
  if (partly_answered) board_->executed = piece_at(at).end();
}

void Requester::end_recovery_if_over() {
  if (board_->over(unacked_)) {
    board_.reset();
  } else if (unacked_ != next_ && board_->at(unacked_).fate == Fate::Lost) {
    qp_.urgent = true;
  }
}

void Requester::forget_losses() {
  board_.reset();
  answers_.clear();
  timed_.reset();
  probes_ = 0;
  probed_at_ = kNever;
  qp_.urgent = probe_due_ = false;
  stop_ack_timer();
}

void Requester::learn_executed(wire::Psn end, Instant now) {
  if (!is_before(board_->executed, end)) return;
  if (timed_ && is_before(*timed_, end)) end_measurement(now);
  // One answer of a READ, and all of its request was executed.
  end = piece_at(place_of(end - 1)).end();
  for_each_piece(board_->executed, end, [&](const SendWqe& wqe, const Piece& piece) {
    const bool answered = is_read_or_atomic(wqe.op);
    board_->know_arrived(piece.first);
    for (wire::Psn psn = piece.first; psn != piece.end(); psn = psn + 1) {
      board_->at(psn).asked_again = false;
      set_fate(psn, answered ? Fate::UnderWay : Fate::Arrived);
    }
  });
  board_->executed = end;
}

// Completes what is done, in order: requests that were executed, and answers that were kept.
void Requester::settle_in_order(Instant now) {
  while (unacked_ != next_ && !qp_.failure) {
    const SendWqe& wqe = queue_.front();
    if (is_read_or_atomic(wqe.op)) {
      if (answers_.empty() || answers_.psn(0) != unacked_) break;
      auto answer = answers_.take_first();
      take_answer(answer->packet, now);
      answers_.release(std::move(answer));
      continue;
    }
    const int32_t executed = board_->executed.distance_from(unacked_);
    if (executed <= 0) break;
    const int32_t left = wqe.last_psn().distance_from(unacked_) + 1;
    advance_unacked(static_cast<uint32_t>(std::min(left, executed)), now);
  }
}

// Only what is under way counts against the peer's window.
void Requester::set_fate(wire::Psn psn, Fate fate) {
  const Fate before = board_->at(psn).fate;
  board_->set_fate(psn, fate);
  if ((before == Fate::UnderWay) == (fate == Fate::UnderWay)) return;
  const Place at = place_of(psn);
  const uint32_t cost = cost_of(queue_.at(at.index), at.packet, 1);
  if (fate == Fate::UnderWay) {
    qp_.peer->on_sent(cost);
    in_flight_cost_ += cost;
    return;
  }
  in_flight_cost_ -= cost;
  if (fate == Fate::Arrived) {
    qp_.peer->on_acked(cost, qp_.engine.now);
  } else {
    qp_.peer->release(cost);
  }
}

// `packets` PSNs from unacked_ on leave the books.
void Requester::settle_costs(uint32_t packets) {
  for (wire::Psn psn = unacked_; psn != unacked_ + packets; psn = psn + 1) {
    board_->know_arrived(psn);
    set_fate(psn, Fate::Arrived);
    board_->set_fate(psn, Fate::UnderWay);
  }
}

Requester::Place Requester::place_of(wire::Psn psn) const {
  // All requests in front of the cursor have PSNs, in order; local ones do not get behind it.
  uint64_t from = queue_.head();
  uint64_t to = cursor_packet_ != 0 ? cursor_ : cursor_ - 1;
  while (from < to) {
    const uint64_t middle = from + (to - from + 1) / 2;
    if (is_before(psn, queue_.at(middle).first_psn)) {
      to = middle - 1;
    } else {
      from = middle;
    }
  }
  return {from, static_cast<uint32_t>(psn.distance_from(queue_.at(from).first_psn))};
}

// Calls visit(request, piece) for all that was sent of [from, to), in order.
template <typename Visit>
void Requester::for_each_piece(wire::Psn from, wire::Psn to, Visit visit) {
  if (!is_before(from, to)) return;
  Place at = place_of(from);
  while (is_before(from, to)) {
    const SendWqe& wqe = queue_.at(at.index);
    Piece piece = piece_at(at);
    piece.packets = std::min(piece.packets, static_cast<uint32_t>(to.distance_from(from)));
    visit(wqe, piece);
    from = piece.end();
    at.packet += piece.packets;
    if (at.packet == wqe.packets) at = {at.index + 1, 0};
  }
}

// --- time ----------------------------------------------------------------------------------------

Instant Requester::deadline() const {
  return std::min({ack_deadline_, probe_deadline_, rnr_until_});
}

void Requester::restart_ack_timer(Instant now) {
  const bool in_memory = qp_.peer->is_in_memory();
  if (next_ == unacked_ || (qp_.attr.timeout == 0 && !in_memory)) return stop_ack_timer();
  // The standard lets a wait be up to four times as long as was asked for. Ours become so when
  // there is no answer: a peer in software may be alive and only not have got a processor for a
  // while.
  const int64_t longer = int64_t{1} << std::min(timeouts_in_a_row_, 2u);
  ack_deadline_ = qp_.attr.timeout != 0 ? now + ack_timeout(qp_.attr.timeout) * longer : kNever;
  probe_deadline_ = probe_time(now);
}

void Requester::end_measurement(Instant now) {
  qp_.peer->on_round_trip(now - timed_at_, now);
  timed_.reset();
}

// There are news from the peer.
void Requester::end_probes(Instant now) {
  probes_ = 0;
  if (probed_at_ == kNever) return;
  qp_.peer->round_trip.heard_after_probe(now - probed_at_);
  probed_at_ = kNever;
}

// Each probe in a row waits twice as long. One that would come with the timeout is none.
Instant Requester::probe_time(Instant now) const {
  if (qp_.peer->is_in_memory()) return stuck_time(now);  // nothing gets lost there
  const bool losses = board_ && board_->episode_end != 0;
  const auto late = qp_.peer->round_trip.late_after(losses, ack_timeout(qp_.attr.timeout));
  if (!late || probes_ > 16) return kNever;
  const Instant at = now + *late * (int64_t{1} << probes_);
  return at < ack_deadline_ ? at : kNever;
}

}  // namespace verbena::core
