// The responder's request path: order, checks, duplicates and refusals. Clause numbers are those of
// IBA volume 1, chapter 9. responder_execute.cc executes requests, responder_send.cc sends the
// responses.
#include "core/responder.h"

#include <algorithm>
#include <utility>

namespace verbena::core {

using wire::NakCode;
using wire::Position;
using wire::Verb;

Responder::Responder(QpCommon& qp, uint32_t max_wr, uint32_t max_sges)
    : qp_(qp), receives_(qp, max_wr, max_sges), reorder_buffer_(qp.engine.packet_pool) {}

void Responder::start() {
  expected_ = wire::Psn(qp_.attr.rq_psn);
  msn_ = 0;
  message_.reset();
  nak_sent_ = false;
  reorder_buffer_.clear();
  resources_.forget_all();
  qp_.acks.reset();
}

void Responder::reset() {
  receives_.reset();
  message_.reset();
  nak_sent_ = false;
  reorder_buffer_.clear();
  resources_.clear();
  qp_.acks.reset();
}

void Responder::drop_responses() {
  resources_.drop_responses();
  qp_.acks.reset();
}

void Responder::flush() {
  message_.reset();
  reorder_buffer_.clear();
  receives_.flush();
}

void Responder::on_request(const wire::Packet& p, const wire::RxMeta&) {
  // The peer reads SACK lists, which report more than the plain NAK that was sent.
  if (qp_.extensions.on_request(p.bth)) [[unlikely]]
    nak_sent_ = false;
  const int32_t ahead = p.bth.psn.distance_from(expected_);
  if (ahead < 0) return on_duplicate(p);
  if (ahead > 0) return on_ahead(p);
  run(p);
  if (!reorder_buffer_.empty()) [[unlikely]]
    run_buffered();
}

// The packets of a run that continue the present message. All checks of run() hold for them: the
// order, the length of each packet and of the message, the receive, and the access to the memory.
size_t Responder::on_request_run(const wire::PacketRun& run) {
  const wire::Packet& p = run.first();
  const uint32_t packet_bytes = qp_.packet_payload_bytes_of(p);
  if (!message_ || message_->verb != p.op.verb || p.bth.psn != expected_ || has_gap() ||
      p.payload.size() != packet_bytes) {
    return 0;
  }
  size_t count = std::min(run.size(), packets_in_message(p.op.verb, packet_bytes));
  if (!reorder_buffer_.empty()) {
    count = std::min(count, static_cast<size_t>(reorder_buffer_.psn(0).distance_from(expected_)));
  }
  const wire::PacketRun taken = run.first_packets(count);
  if (count < 2 || !place_run(taken)) return 0;

  qp_.extensions.on_request(p.bth);
  message_->received += static_cast<uint32_t>(count) * packet_bytes;
  expected_ = expected_ + static_cast<uint32_t>(count);
  nak_sent_ = false;
  qp_.acks.on_executed();
  if (taken.asks_for_ack()) qp_.acks.on_ack_due();
  if (!reorder_buffer_.empty()) run_buffered();
  return count;
}

// A request is missing that was sent before one that was received.
bool Responder::has_gap() const {
  return !reorder_buffer_.empty() && sent_to_.distance_from(expected_) > 0;
}

// The gap is filled: executes buffered requests up to the next gap, which is reported to the peer.
void Responder::run_buffered() {
  while (!reorder_buffer_.empty() && !qp_.failure) {
    const int32_t ahead = reorder_buffer_.psn(0).distance_from(expected_);
    if (ahead > 0) {
      if (has_gap()) {
        qp_.acks.on_ack_due();
      } else {
        sent_to_ = expected_;
      }
      return;
    }
    auto next = reorder_buffer_.take_first();  // before it runs: run() may clear the buffer
    if (ahead == 0) run(next->packet);
    reorder_buffer_.release(std::move(next));
  }
}

// Executes the request with the expected PSN.
void Responder::run(const wire::Packet& p) {
  if (p.op.has_xrc_eth && !choose_srq(p)) {
    return refuse(Verdict::Invalid, p);
  }

  Verdict verdict = check_order(p);
  if (verdict == Verdict::Proceed) verdict = check_length(p);
  if (verdict == Verdict::Proceed) verdict = check_receive(p);
  if (verdict == Verdict::Proceed) verdict = execute(p);
  apply(verdict, p);
}

// XRC: the request names the shared receive queue, whose protection domain applies to all memory
// that the request accesses. The queue must belong to the queue pair's XRC domain and be the same
// for all packets of a message.
bool Responder::choose_srq(const wire::Packet& p) {
  const auto found = qp_.engine.srqs.find(p.xrc_srqn);
  if (found == qp_.engine.srqs.end()) return false;
  SharedReceiveQueue* srq = found->second.get();
  if (srq->config().xrc_domain != qp_.config.xrc_domain) return false;
  if (message_ && srq != receives_.chosen()) return false;
  receives_.choose(srq);
  qp_.pd = srq->config().pd;
  return true;
}

void Responder::on_ahead(const wire::Packet& p) {
  if (reorder_buffer_.empty()) sent_to_ = expected_;
  const int32_t reach = SackList::reach(wire::bytes_of(qp_.attr.path_mtu));
  if (qp_.extensions.is_reordered(p.bth)) {  // a packet without the flag reveals a loss
    if (!nak_sent_ && reorder_buffer_.put(expected_, p, reach))
      qp_.count(CounterId::requests_reordered);
    return;
  }
  qp_.count(CounterId::out_of_sequence);
  if (nak_sent_) return;  // C9-114: one NAK per expected PSN
  if (p.bth.psn.distance_from(sent_to_) >= 0) sent_to_ = p.bth.psn + 1;
  if (qp_.extensions.peer_reads_sack() && reorder_buffer_.put(expected_, p, reach)) {
    qp_.count(CounterId::requests_buffered);
  }
  if (!reorder_buffer_.empty()) return qp_.acks.on_ack_due();
  nak_sent_ = true;
  qp_.acks.on_refused({wire::AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), msn_});
  qp_.count(CounterId::naks_sequence_sent);
}

// C9-105 and following: a duplicate is not executed again, but its response is replayed.
void Responder::on_duplicate(const wire::Packet& p) {
  qp_.count(CounterId::duplicate_requests);
  if (p.op.verb == Verb::Send || p.op.verb == Verb::Write) {
    qp_.acks.on_ack_due();
    qp_.extensions.announce_again();  // that ACK may have been lost
    return;
  }
  if (!resources_.replay(p, qp_.packet_payload_bytes_of(p))) {
    qp_.count(CounterId::duplicate_dropped);
  }
}

// The packet's position in its message (C9-81 and following).
Responder::Verdict Responder::check_order(const wire::Packet& p) const {
  if (message_.has_value() == p.op.starts_message()) return Verdict::Invalid;
  if (message_ && message_->verb != p.op.verb) return Verdict::Invalid;
  return Verdict::Proceed;
}

Responder::Verdict Responder::check_length(const wire::Packet& p) const {
  const uint32_t mtu = qp_.packet_payload_bytes_of(p);
  const size_t bytes = p.payload.size();
  switch (p.op.position) {
    case Position::First:
    case Position::Middle:
      if (bytes != mtu) return Verdict::Invalid;
      break;
    case Position::Last:
      if (bytes == 0 || bytes > mtu) return Verdict::Invalid;
      break;
    case Position::Only:
      if (bytes > mtu) return Verdict::Invalid;
      break;
  }
  const bool has_payload = p.op.verb == Verb::Send || p.op.verb == Verb::Write;
  if (p.op.verb == Verb::AtomicWrite)
    return bytes == 8 && p.reth.length == 8 ? Verdict::Proceed : Verdict::Invalid;
  if (!has_payload && bytes != 0) return Verdict::Invalid;
  const uint32_t before = message_ ? message_->received : 0;
  if (has_payload && before + bytes > kMaxMessageBytes) return Verdict::Invalid;
  if (p.op.verb == Verb::Write) {
    const uint32_t total = message_ ? message_->reth.length : p.reth.length;
    if (total > kMaxMessageBytes || before + bytes > total) return Verdict::Invalid;
    if (p.op.ends_message() != (before + bytes == total)) return Verdict::Invalid;
  }
  return Verdict::Proceed;
}

Responder::Verdict Responder::check_receive(const wire::Packet& p) const {
  const bool consumes_receive = (p.op.verb == Verb::Send && p.op.starts_message()) ||
                                (p.op.verb == Verb::Write && p.op.has_immediate);
  if (consumes_receive && receives_.empty()) return Verdict::NotReady;
  return Verdict::Proceed;
}

void Responder::apply(Verdict verdict, const wire::Packet& p) {
  switch (verdict) {
    case Verdict::Proceed: {
      const uint32_t packets =
          p.op.verb == Verb::ReadRequest
              ? read_response_packets(p.reth.length, qp_.packet_payload_bytes_of(p))
              : 1;
      expected_ = expected_ + packets;
      nak_sent_ = false;
      qp_.acks.on_executed();
      const bool has_response = p.op.verb != Verb::Send && p.op.verb != Verb::Write;
      if (p.bth.ack_request && !has_response) qp_.acks.on_ack_due();
      return;
    }
    case Verdict::Drop:
      return;
    case Verdict::NotReady:
      qp_.acks.on_refused({wire::AckKind::RnrNak, qp_.attr.min_rnr_timer, msn_});
      nak_sent_ = true;         // later requests are dropped without a NAK until the retry
      reorder_buffer_.clear();  // the peer retransmits these
      qp_.count(CounterId::rnr_naks_sent);
      return;
    default:
      return refuse(verdict, p);
  }
}

Responder::Refusal Responder::refusal_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::TooLong:  // C9-95
      return {NakCode::InvalidRequest, WcStatus::LocalLength};
    case Verdict::Denied:
      return {NakCode::RemoteAccess, WcStatus::RemoteAccess};
    case Verdict::DeniedLocally:
      return {NakCode::RemoteOperational, WcStatus::LocalProtection};
    case Verdict::Failed:
      return {NakCode::RemoteOperational, WcStatus::RemoteOperation};
    default:
      return {NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest};
  }
}

// A request that must not be executed: sends a NAK, fails the receive in use and the queue pair.
void Responder::refuse(Verdict verdict, const wire::Packet& p) {
  const Refusal refusal = refusal_of(verdict);
  qp_.acks.on_refused({wire::AckKind::Nak, static_cast<uint8_t>(refusal.code), msn_});
  nak_sent_ = true;
  EventKind event = EventKind::QpRequestError;
  switch (refusal.code) {
    case NakCode::RemoteAccess:
      qp_.count(CounterId::naks_remote_access_sent);
      event = EventKind::QpAccessError;
      break;
    case NakCode::RemoteOperational:
      qp_.count(CounterId::naks_remote_operation_sent);
      event = EventKind::QpFatal;
      break;
    default:
      qp_.count(CounterId::naks_invalid_request_sent);
      break;
  }
  if (receives_.has_receive()) {
    receives_.complete([&](Completion& c) {
      c.status = refusal.receive_status;
      c.opcode = WcOpcode::Receive;
    });
  }
  message_.reset();
  if (qp_.failure) return;  // the queue pair has failed already
  qp_.engine.raise({.kind = event, .qp = qp_.self});
  QpFailure& f = qp_.fail(refusal.receive_status);
  f.as_responder = true;
  f.packet_opcode = p.bth.opcode;
  f.psn = p.bth.psn.value();
  if (p.op.has_atomic_eth) {
    f.remote_address = p.atomic.address;
    f.rkey = p.atomic.rkey;
  } else if (p.op.has_reth) {
    f.remote_address = p.reth.address;
    f.rkey = p.reth.rkey;
    f.length = p.reth.length;
  }
}

}  // namespace verbena::core
