// The requester's receiving half: acknowledgements, answers and NAKs.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/posting.h"
#include "core/requester.h"

namespace verbena::core {

Duration rnr_delay(uint8_t code) {
  // In units of 10 us; the code 0 is the longest.
  static constexpr std::array<uint32_t, 32> kTensOfMicroseconds = {
      65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return microseconds(10) * kTensOfMicroseconds[code & 31];
}

Duration ack_timeout(uint8_t code) { return nanoseconds(4096) * (int64_t{1} << (code & 31)); }

// Whether something under way has this PSN.
bool Requester::awaits(wire::Psn psn) const {
  return started_ && !queue_.empty() && psn.distance_from(unacked_) >= 0 &&
         psn.distance_from(next_) < 0;
}

void Requester::on_response(const wire::Packet& p, Instant now) {
  if (!awaits(p.bth.psn)) {
    qp_.count(CounterId::stale_responses);
    return;
  }
  qp_.peer->unresponsive_until = Instant{};
  qp_.extensions.on_response(p.bth);
  if (p.op.verb == wire::Verb::Ack) {
    on_acknowledge(p, now);
  } else {
    on_data(p, now);
  }
}

void Requester::on_piggybacked_ack(wire::Psn last, Instant now) {
  if (!awaits(last)) return qp_.count(CounterId::stale_responses);
  qp_.peer->unresponsive_until = Instant{};
  take_acknowledgement(last + 1, now);
}

void Requester::take_acknowledgement(wire::Psn end, Instant now) {
  // False: a READ or atomic before it was answered, and the answer did not reach us.
  if (board_ || !acknowledge_up_to(end, now)) acknowledge_late(end, now);
}

void Requester::on_acknowledge(const wire::Packet& p, Instant now) {
  const bool positive = p.aeth.kind == wire::AckKind::Ack;
  take_acknowledgement(positive ? p.bth.psn + 1 : p.bth.psn, now);
  if (positive || qp_.failure || queue_.empty()) return;
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
  if (rnr_until_ != kNever && now < rnr_until_) return;  // a copy of one we already wait for
  ++tries_;
  // The peer got the request and answered it: what retry_cnt guards against is not the case.
  // (Soft-RoCE also complains about the packets behind it, now or after our wait.)
  renew_retries();
  if (qp_.attr.rnr_retry != 7) {  // 7: for ever
    if (rnr_retries_left_ == 0) {
      qp_.count(CounterId::rnr_retry_exceeded);
      fail_head(WcStatus::RnrRetryExceeded);
      return;
    }
    --rnr_retries_left_;
  }
  send_all_again_from(p.bth.psn);
  rnr_until_ = now + rnr_delay(p.aeth.value);
}

void Requester::on_nak(const wire::Packet& p, Instant now) {
  const auto code = static_cast<wire::NakCode>(p.aeth.value);
  if (code == wire::NakCode::SequenceError) {
    qp_.count(CounterId::naks_sequence_received);
    // Soft-RoCE complains about what followed a request it answered with RNR; we wait already.
    if (rnr_until_ == kNever || now >= rnr_until_) on_sequence_nak(p, now);
    return;
  }
  // A READ before it is still without its answer: it is not that READ which was refused.
  if (unacked_ != p.bth.psn) return;
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
  while (unacked_ != end && !queue_.empty()) {
    SendWqe& wqe = queue_.front();
    VERBENA_CHECK(wqe.numbered);
    if (is_read_or_atomic(wqe.op)) return false;
    const int32_t left = wqe.last_psn().distance_from(unacked_) + 1;
    const auto packets = static_cast<uint32_t>(std::min(left, end.distance_from(unacked_)));
    advance_unacked(packets, now);
  }
  return true;
}

void Requester::on_data(const wire::Packet& p, Instant now) {
  if (board_) [[unlikely]]
    return on_late_data(p, now);
  // The earliest READ or atomic that was sent is the one that must be answered next.
  uint64_t index = queue_.head();
  while (index != queue_.tail() && queue_.at(index).numbered &&
         !is_read_or_atomic(queue_.at(index).op)) {
    ++index;
  }
  if (index == queue_.tail() || !queue_.at(index).numbered) {
    qp_.count(CounterId::stale_responses);
    return;
  }
  const wire::Psn expected = index == queue_.head() ? unacked_ : queue_.at(index).first_psn;
  const int32_t ahead = p.bth.psn.distance_from(expected);
  if (ahead < 0) {
    qp_.count(CounterId::stale_responses);
    return;
  }
  acknowledge_up_to(expected, now);  // an answer says that all before its request was done
  if (qp_.failure) return;
  if (ahead > 0) return on_late_data(p, now);
  take_answer(p, now);
}

// Whether the answer is of the kind and length that packet `packet` of the request asks for.
bool Requester::fits(const wire::Packet& p, const SendWqe& wqe, uint32_t packet) const {
  if (p.op.has_aeth && p.aeth.kind != wire::AckKind::Ack) return false;
  if (is_atomic(wqe.op)) return p.op.verb == wire::Verb::AtomicAck;
  if (p.op.verb != wire::Verb::ReadResponse) return false;
  return p.payload.size() == (wqe.op == SendOp::Read ? packet_bytes(wqe, packet) : 0);
}

// The answer that is due, to the request at the head.
void Requester::take_answer(const wire::Packet& p, Instant now) {
  const SendWqe& wqe = queue_.front();
  const auto packet = static_cast<uint32_t>(unacked_.distance_from(wqe.first_psn));
  if (!fits(p, wqe, packet)) {
    qp_.count(CounterId::bad_responses);
    return fail_head(WcStatus::BadResponse);
  }
  if (!place_answer(p, wqe, packet)) return fail_head(WcStatus::LocalProtection);
  advance_unacked(1, now);
}

// False if the lkeys do not grant what is to be written.
bool Requester::place_answer(const wire::Packet& p, const SendWqe& wqe, uint32_t packet) {
  if (wqe.op == SendOp::AtomicWrite || wqe.op == SendOp::Flush) return true;
  std::array<std::byte, 8> original;
  std::span<const std::byte> bytes = p.payload;
  uint32_t offset = packet * wqe.cut_bytes;
  if (is_atomic(wqe.op)) {
    std::memcpy(original.data(), &p.original, 8);
    bytes = original;
    offset = 0;
  }
  const bool last = packet + 1 == wqe.packets;
  return scatter(qp_.engine.memory, qp_.pd, queue_.sges(queue_.head()), offset, bytes, last);
}

// `packets` PSNs from unacked_ on, all of the request at the head, are done.
void Requester::advance_unacked(uint32_t packets, Instant now) {
  SendWqe& wqe = queue_.front();
  if (board_) [[unlikely]] {
    settle_costs(packets);
  } else {
    const auto first = static_cast<uint32_t>(unacked_.distance_from(wqe.first_psn));
    const uint32_t cost = cost_of(wqe, first, packets);
    qp_.peer->on_acked(cost, now);
    in_flight_cost_ -= cost;
  }
  unacked_ = unacked_ + packets;
  while (!reads_.empty() && unacked_.distance_from(reads_.front().last) > 0)
    reads_.erase(reads_.begin());
  while (!batches_.empty() && unacked_.distance_from(batches_.front().end) >= 0)
    batches_.erase(batches_.begin());
  if (timed_ && unacked_.distance_from(*timed_) > 0) end_measurement(now);
  tries_ = 0;
  renew_retries();
  rnr_retries_left_ = qp_.attr.rnr_retry;
  rnr_until_ = kNever;
  end_probes(now);
  taken_back_ = false;

  if (unacked_.distance_from(wqe.last_psn()) > 0) {
    const bool brought = wqe.op == SendOp::Read || is_atomic(wqe.op);
    complete_head(qp_, queue_, WcStatus::Success, brought ? wqe.length : 0);
  }
  restart_ack_timer(now);
}

void Requester::fail_head(WcStatus status) {
  const SendWqe& wqe = queue_.front();
  if (qp_.failure) return;
  QpFailure& f = qp_.fail(status);
  f.op = wqe.op;
  f.wr_id = wqe.wr_id;
  f.length = wqe.length;
  f.remote_address = wqe.remote_address;
  f.rkey = wqe.rkey;
  f.psn = unacked_.value();
  f.retries = tries_;
}

void Requester::flush(WcStatus first) {
  if (qp_.peer != nullptr) qp_.peer->release(in_flight_cost_);
  in_flight_cost_ = 0;
  reads_.clear();
  batches_.clear();
  forget_losses();
  rnr_until_ = kNever;
  direct_bytes_ = 0;
  taken_back_ = false;
  WcStatus status = first;
  while (!queue_.empty()) {
    complete_head(qp_, queue_, status, 0);
    status = WcStatus::Flushed;
  }
  cursor_ = queue_.head();
  cursor_packet_ = 0;
  next_ = unacked_;
}

}  // namespace verbena::core
