// The requester's receiving half: ACKs, responses and NAKs, in order and during recovery.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/posting.h"
#include "core/requester.h"

namespace verbena::core {

bool Requester::awaits(wire::Psn psn) const {
  return cursor_.is_started() && !queue().empty() && cursor_.is_outstanding(psn);
}

void Requester::on_response(const wire::Packet& p, bool marked, Instant now) {
  if (!awaits(p.bth.psn)) {
    qp_.count(CounterId::stale_responses);
    return;
  }
  qp_.peer->unresponsive_until = Instant{};
  qp_.extensions.on_response(p.bth);
  recovery_.begin_response(marked);
  if (p.op.verb == wire::Verb::Ack) {
    on_ack(p, now);
  } else {
    on_data(p, now);
  }
}

// The packets of a run of READ responses that the request at the head awaits next, except the last
// one of the request.
size_t Requester::on_response_run(const wire::PacketRun& run, Instant now) {
  const wire::Packet& p = run.first();
  if (!awaits(p.bth.psn) || p.bth.psn != cursor_.unacked() || recovery_.is_active()) return 0;
  const SendWqe& wqe = queue().front();
  const auto packet = static_cast<uint32_t>(cursor_.unacked().distance_from(wqe.first_psn));
  if (wqe.op != SendOp::Read || !fits(p, wqe, packet)) return 0;
  const uint32_t longest =
      std::min(wqe.packets - packet - 1, wire::kMaxPayloadBytes / wqe.packet_payload_bytes);
  const auto count = static_cast<uint32_t>(std::min<size_t>(run.size(), longest));
  if (count < 2 || !is_before(p.bth.psn + count - 1, cursor_.next())) return 0;
  if (!scatter(qp_.engine.memory, qp_.pd, queue().sges(queue().head()),
               packet * wqe.packet_payload_bytes, run.first_packets(count))) {
    return 0;
  }
  qp_.peer->unresponsive_until = Instant{};
  qp_.extensions.on_response(p.bth);
  recovery_.begin_response(false);
  // One by one: to congestion control, each packet is an event.
  for (uint32_t i = 0; i < count; ++i) acknowledge(1, now);
  return count;
}

void Requester::on_piggybacked_ack(wire::Psn last, bool marked, Instant now) {
  if (!awaits(last)) return qp_.count(CounterId::stale_responses);
  qp_.peer->unresponsive_until = Instant{};
  recovery_.begin_response(marked);
  take_ack(last + 1, now);
}

void Requester::take_ack(wire::Psn end, Instant now) {
  // False: the response to a READ or atomic before it is missing.
  const bool in_order = !recovery_.is_active() && acknowledge_up_to(end, now);
  if (!in_order) take_ack_in_recovery(end, now);
}

void Requester::on_ack(const wire::Packet& p, Instant now) {
  const bool positive = p.aeth.kind == wire::AckKind::Ack;
  take_ack(positive ? p.bth.psn + 1 : p.bth.psn, now);
  if (positive || qp_.failure || queue().empty()) return;
  switch (p.aeth.kind) {
    case wire::AckKind::RnrNak:
      return on_rnr_nak(p, now);
    case wire::AckKind::Nak:
      return on_nak(p, now);
    default:
      qp_.count(CounterId::bad_responses);
      return;
  }
}

void Requester::on_rnr_nak(const wire::Packet& p, Instant now) {
  qp_.count(CounterId::rnr_naks_received);
  begin_recovery();
  if (recovery_.was_executed(p.bth.psn)) return;  // a later response overtook the NAK
  if (!recovery_.use_rnr_retry(now)) return;
  recovery_.retransmit_from(p.bth.psn, now);
  recovery_.wait_for_receiver(now + rnr_delay(p.aeth.value));
  ack_requests_.restart();
}

void Requester::on_nak(const wire::Packet& p, Instant now) {
  const auto code = static_cast<wire::NakCode>(p.aeth.value);
  if (code == wire::NakCode::SequenceError) {
    qp_.count(CounterId::naks_sequence_received);
    // Soft-RoCE sends one for the packets behind a request that it refused with an RNR NAK.
    if (recovery_.is_waiting_for_receiver(now)) return;
    begin_recovery();
    if (recovery_.on_sequence_nak(p, now)) ack_requests_.restart();
    return;
  }
  // A READ before it still waits for its response: that READ is not the one that was refused.
  if (cursor_.unacked() != p.bth.psn) return;
  qp_.count(CounterId::naks_fatal_received);
  switch (code) {
    case wire::NakCode::InvalidRequest:
      return fail_head(WcStatus::RemoteInvalidRequest);
    case wire::NakCode::RemoteAccess:
      return fail_head(WcStatus::RemoteAccess);
    case wire::NakCode::RemoteOperational:
      return fail_head(WcStatus::RemoteOperation);
    default:
      return fail_head(WcStatus::BadResponse);
  }
}

bool Requester::acknowledge_up_to(wire::Psn end, Instant now) {
  while (cursor_.unacked() != end && !queue().empty()) {
    const SendWqe& wqe = queue().front();
    VERBENA_CHECK(wqe.numbered);
    if (is_read_or_atomic(wqe.op)) return false;
    const int32_t left = wqe.last_psn().distance_from(cursor_.unacked()) + 1;
    acknowledge(static_cast<uint32_t>(std::min(left, end.distance_from(cursor_.unacked()))), now);
  }
  return true;
}

// A READ response or an atomic response.
void Requester::on_data(const wire::Packet& p, Instant now) {
  if (recovery_.is_active()) [[unlikely]]
    return on_data_in_recovery(p, now);
  // The next response belongs to the earliest outstanding READ or atomic.
  uint64_t index = queue().head();
  while (index != queue().tail() && queue().at(index).numbered &&
         !is_read_or_atomic(queue().at(index).op)) {
    ++index;
  }
  if (index == queue().tail() || !queue().at(index).numbered) {
    return qp_.count(CounterId::stale_responses);
  }
  const wire::Psn expected =
      index == queue().head() ? cursor_.unacked() : queue().at(index).first_psn;
  const int32_t ahead = p.bth.psn.distance_from(expected);
  if (ahead < 0) return qp_.count(CounterId::stale_responses);
  acknowledge_up_to(expected, now);  // the peer has executed all requests before this one
  if (qp_.failure) return;
  if (ahead > 0) return on_data_in_recovery(p, now);
  take_response(p, now);
}

// Whether the response is of the kind and length that packet `packet` of the request asks for.
bool Requester::fits(const wire::Packet& p, const SendWqe& wqe, uint32_t packet) const {
  if (p.op.has_aeth && p.aeth.kind != wire::AckKind::Ack) return false;
  if (is_atomic(wqe.op)) return p.op.verb == wire::Verb::AtomicAck;
  if (p.op.verb != wire::Verb::ReadResponse) return false;
  return p.payload.size() == (wqe.op == SendOp::Read ? SendCursor::packet_bytes(wqe, packet) : 0);
}

// The response that is due, to the request at the head.
void Requester::take_response(const wire::Packet& p, Instant now) {
  const SendWqe& wqe = queue().front();
  const auto packet = static_cast<uint32_t>(cursor_.unacked().distance_from(wqe.first_psn));
  if (!fits(p, wqe, packet)) {
    qp_.count(CounterId::bad_responses);
    return fail_head(WcStatus::BadResponse);
  }
  if (!place_response(p, wqe, packet)) return fail_head(WcStatus::LocalProtection);
  acknowledge(1, now);
}

// False if the lkeys do not grant the access.
bool Requester::place_response(const wire::Packet& p, const SendWqe& wqe, uint32_t packet) {
  if (wqe.op == SendOp::AtomicWrite || wqe.op == SendOp::Flush) return true;
  std::array<std::byte, 8> original;
  std::span<const std::byte> bytes = p.payload;
  uint32_t offset = packet * wqe.packet_payload_bytes;
  if (is_atomic(wqe.op)) {
    std::memcpy(original.data(), &p.original, 8);
    bytes = original;
    offset = 0;
  }
  const bool last = packet + 1 == wqe.packets;
  return scatter(qp_.engine.memory, qp_.pd, queue().sges(queue().head()), offset, bytes, last);
}

// `packets` PSNs of the request at the head are done.
void Requester::acknowledge(uint32_t packets, Instant now) {
  const SendWqe& wqe = queue().front();
  recovery_.on_acked(packets, now);
  const wire::Psn unacked = cursor_.unacked();
  while (!reads_.empty() && is_before(reads_.front().last, unacked)) reads_.erase(reads_.begin());
  batches_.on_acked();
  if (!is_before(wqe.last_psn(), unacked)) return;
  const bool has_data = wqe.op == SendOp::Read || is_atomic(wqe.op);
  complete_head(qp_, queue(), WcStatus::Success, has_data ? wqe.length : 0);
}

// --- during recovery -----------------------------------------------------------------------------

void Requester::begin_recovery() {
  if (Scoreboard* const board = recovery_.begin()) batches_.restore_order(*board);
}

// The peer has executed all requests before `end`, but a response to one of them is or was
// missing.
void Requester::take_ack_in_recovery(wire::Psn end, Instant now) {
  begin_recovery();
  recovery_.on_executed(end, now);
  recovery_.on_responded_to(end);
  complete_in_order(now);
  recovery_.find_lost_responses(now);
  recovery_.end_if_over();
}

// A response, while one before it is missing.
void Requester::on_data_in_recovery(const wire::Packet& p, Instant now) {
  begin_recovery();
  const wire::Psn psn = p.bth.psn;
  const Place at = cursor_.place_of(psn);
  const bool was_requested = is_read_or_atomic(queue().at(at.index).op);
  if (!was_requested || recovery_.is_received(psn)) {
    return qp_.count(CounterId::stale_responses);
  }
  recovery_.on_executed(cursor_.chunk_at(at).end(), now);
  recovery_.record_received(psn);
  recovery_.on_responded_to(psn);
  complete_in_order(now);
  if (qp_.failure) return;
  if (psn == cursor_.unacked()) {
    take_response(p, now);
    complete_in_order(now);
  } else if (responses_.put(cursor_.unacked(), p)) {
    qp_.count(CounterId::responses_buffered);
    recovery_.on_response_buffered(psn, now);
  }
  recovery_.find_lost_responses(now);
  recovery_.end_if_over();
}

// Requests that were executed, and READs and atomics whose responses are buffered.
void Requester::complete_in_order(Instant now) {
  while (cursor_.has_outstanding() && !qp_.failure) {
    const SendWqe& wqe = queue().front();
    const wire::Psn unacked = cursor_.unacked();
    if (is_read_or_atomic(wqe.op)) {
      if (responses_.empty() || responses_.psn(0) != unacked) break;
      auto response = responses_.take_first();
      take_response(response->packet, now);
      responses_.release(std::move(response));
      continue;
    }
    const int32_t executed = recovery_.executed().distance_from(unacked);
    if (executed <= 0) break;
    const int32_t left = wqe.last_psn().distance_from(unacked) + 1;
    acknowledge(static_cast<uint32_t>(std::min(left, executed)), now);
  }
}

void Requester::on_deadline(Instant now) {
  if (recovery_.is_due(LossRecovery::Timer::Ack, now) && !queue().empty()) {
    if (cursor_.has_outstanding()) {
      begin_recovery();  // allocates: if that fails, the timeout is still due
      ack_requests_.restart();
    }
    batches_.on_timed_out();
  }
  recovery_.on_deadline(now);
}

// --- the end -------------------------------------------------------------------------------------

void Requester::clear_outstanding() {
  recovery_.reset();
  responses_.clear();
  reads_.clear();
  batches_.clear();
  direct_.reset();
}

void Requester::flush(WcStatus first) {
  clear_outstanding();
  WcStatus status = first;
  while (!queue().empty()) {
    complete_head(qp_, queue(), status, 0);
    status = WcStatus::Flushed;
  }
  cursor_.drop_outstanding();
}

}  // namespace verbena::core
