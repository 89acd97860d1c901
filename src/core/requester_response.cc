// The requester's receiving half: acknowledgements, answers, NAKs and time-outs.
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

void Requester::restart_ack_timer(Instant now) {
  ack_deadline_ =
      next_ == unacked_ || qp_.attr.timeout == 0 ? kNever : now + ack_timeout(qp_.attr.timeout);
}

Instant Requester::deadline() const { return std::min(ack_deadline_, rnr_until_); }

void Requester::on_response(const wire::Packet& p, Instant now) {
  const bool expected = started_ && !queue_.empty() && p.bth.psn.distance_from(unacked_) >= 0 &&
                        p.bth.psn.distance_from(highest_) < 0;
  if (!expected) {
    qp_.count(CounterId::stale_responses);
    return;
  }
  if (p.op.verb == wire::Verb::Ack) {
    on_acknowledge(p, now);
  } else {
    on_data(p, now);
  }
}

void Requester::on_acknowledge(const wire::Packet& p, Instant now) {
  const bool positive = p.aeth.kind == wire::AckKind::Ack;
  if (!acknowledge_up_to(positive ? p.bth.psn + 1 : p.bth.psn, now)) {
    implied_nak();  // a READ or atomic before it was answered, and the answer did not reach us
    return;
  }
  if (positive || qp_.failure) return;
  if (queue_.empty()) return;
  switch (p.aeth.kind) {
    case wire::AckKind::RnrNak:
      qp_.count(CounterId::rnr_naks_received);
      if (rnr_until_ != kNever && now < rnr_until_) return;  // a copy of one we already wait for
      ++tries_;
      // The peer got the request and answered it: what retry_cnt guards against is not the case.
      // (Soft-RoCE also complains about the packets behind it, now or after our wait.)
      retries_left_ = qp_.attr.retry_count;
      if (qp_.attr.rnr_retry != 7) {  // 7: for ever
        if (rnr_retries_left_ == 0) {
          qp_.count(CounterId::rnr_retry_exceeded);
          fail_head(WcStatus::RnrRetryExceeded);
          return;
        }
        --rnr_retries_left_;
      }
      roll_back();
      rnr_until_ = now + rnr_delay(p.aeth.value);
      return;
    case wire::AckKind::Nak:
      switch (static_cast<wire::NakCode>(p.aeth.value)) {
        case wire::NakCode::SequenceError:
          qp_.count(CounterId::naks_sequence_received);
          // Soft-RoCE complains about what followed a request it answered with RNR; we wait
          // already.
          if (rnr_until_ == kNever || now >= rnr_until_) retry();
          return;
        case wire::NakCode::InvalidRequest:
          fail_head(WcStatus::RemoteInvalidRequest);
          break;
        case wire::NakCode::RemoteAccess:
          fail_head(WcStatus::RemoteAccess);
          break;
        case wire::NakCode::RemoteOperational:
          fail_head(WcStatus::RemoteOperation);
          break;
        default:
          fail_head(WcStatus::BadResponse);
          break;
      }
      qp_.count(CounterId::naks_fatal_received);
      return;
    default:
      qp_.count(CounterId::bad_responses);
      return;
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
  SendWqe& wqe = queue_.at(index);
  const wire::Psn expected = index == queue_.head() ? unacked_ : wqe.first_psn;
  const int32_t ahead = p.bth.psn.distance_from(expected);
  if (ahead < 0) {
    qp_.count(CounterId::stale_responses);
    return;
  }
  acknowledge_up_to(expected, now);  // an answer says that all before its request was done
  if (qp_.failure) return;
  if (ahead > 0) {
    implied_nak();
    return;
  }

  const auto packet = static_cast<uint32_t>(expected.distance_from(wqe.first_psn));
  if (!fits(p, wqe, packet)) {
    qp_.count(CounterId::bad_responses);
    fail_head(WcStatus::BadResponse);
    return;
  }
  if (!take_answer(p, index, packet)) {
    fail_head(WcStatus::LocalProtection);
    return;
  }
  advance_unacked(1, now);
}

// Whether the answer is of the kind and length that packet `packet` of the request asks for.
bool Requester::fits(const wire::Packet& p, const SendWqe& wqe, uint32_t packet) const {
  if (p.op.has_aeth && p.aeth.kind != wire::AckKind::Ack) return false;
  if (is_atomic(wqe.op)) return p.op.verb == wire::Verb::AtomicAck;
  if (p.op.verb != wire::Verb::ReadResponse) return false;
  return p.payload.size() == (wqe.op == SendOp::Read ? packet_bytes(wqe, packet) : 0);
}

// False if the lkeys do not grant what is to be written.
bool Requester::take_answer(const wire::Packet& p, uint64_t index, uint32_t packet) {
  const SendWqe& wqe = queue_.at(index);
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
  return scatter(qp_.engine.memory, qp_.pd, queue_.sges(index), offset, bytes, last);
}

// `packets` PSNs from unacked_ on, all of the request at the head, are done.
void Requester::advance_unacked(uint32_t packets, Instant now) {
  SendWqe& wqe = queue_.front();
  const auto first = static_cast<uint32_t>(unacked_.distance_from(wqe.first_psn));
  // Only what was sent since the last roll-back is charged to the window.
  const int32_t charged = std::min(next_.distance_from(unacked_), static_cast<int32_t>(packets));
  if (charged > 0) {
    const uint32_t cost =
        std::min(cost_of(wqe, first, static_cast<uint32_t>(charged)), in_flight_cost_);
    qp_.window->acknowledged(cost);
    in_flight_cost_ -= cost;
  }
  unacked_ = unacked_ + packets;
  while (!reads_.empty() && unacked_.distance_from(reads_.front().last) > 0)
    reads_.erase(reads_.begin());
  tries_ = 0;
  retries_left_ = qp_.attr.retry_count;
  rnr_retries_left_ = qp_.attr.rnr_retry;
  implied_at_.reset();
  rnr_until_ = kNever;

  const bool behind = next_.distance_from(unacked_) < 0;
  const bool finished = unacked_.distance_from(wqe.last_psn()) > 0;
  if (behind) {  // a late acknowledgement of what we were about to send again
    next_ = unacked_;
    cursor_ = finished ? queue_.head() + 1 : queue_.head();
    cursor_packet_ = finished ? 0 : first + packets;
  }
  if (finished) {
    const bool brought = wqe.op == SendOp::Read || is_atomic(wqe.op);
    complete_head(qp_, queue_, WcStatus::Success, brought ? wqe.length : 0);
  }
  restart_ack_timer(now);
}

void Requester::implied_nak() {
  if (implied_at_ == unacked_) return;  // already asked again; what still arrives is left over
  qp_.count(CounterId::implied_naks);
  retry();
  implied_at_ = unacked_;
}

void Requester::retry() {
  ++tries_;
  if (retries_left_ == 0) {
    qp_.count(CounterId::retry_exceeded);
    fail_head(WcStatus::RetryExceeded);
    return;
  }
  --retries_left_;
  qp_.window->lost();
  roll_back();
}

void Requester::roll_back() {
  qp_.window->release(in_flight_cost_);
  in_flight_cost_ = 0;
  reads_.clear();
  next_ = unacked_;
  cursor_ = queue_.head();
  cursor_packet_ = 0;
  if (!queue_.empty() && queue_.front().numbered) {
    cursor_packet_ = static_cast<uint32_t>(unacked_.distance_from(queue_.front().first_psn));
  }
  since_ack_request_ = 0;
  ack_deadline_ = kNever;
}

void Requester::on_deadline(Instant now) {
  if (rnr_until_ != kNever && now >= rnr_until_) rnr_until_ = kNever;
  if (ack_deadline_ == kNever || now < ack_deadline_) return;
  ack_deadline_ = kNever;
  if (queue_.empty() || unacked_ == highest_) return;
  qp_.count(CounterId::timeouts);
  implied_at_.reset();
  retry();
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
  if (qp_.window != nullptr) qp_.window->release(in_flight_cost_);
  in_flight_cost_ = 0;
  reads_.clear();
  ack_deadline_ = rnr_until_ = kNever;
  WcStatus status = first;
  while (!queue_.empty()) {
    complete_head(qp_, queue_, status, 0);
    status = WcStatus::Flushed;
  }
  cursor_ = queue_.head();
  cursor_packet_ = 0;
  next_ = highest_ = unacked_;
}

}  // namespace verbena::core
