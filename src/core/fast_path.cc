// The fast path: one SEND or WRITE of one packet, while nothing else is in flight between the two
// queue pairs. It builds the packet, places the payload and completes the work request with the
// same functions as the normal path, and skips the checks whose outcome is known. Each half has two
// steps: prepare checks everything, and consumes the receive last of all; commit cannot fail. A
// message that prepare refuses takes the normal path from its beginning, with the same result.
#include "core/engine.h"
#include "core/posting.h"
#include "core/requester.h"
#include "core/responder.h"
#include "wire/local_peer.h"

namespace verbena::core {
namespace {

// The message fits into one packet, even with a piggybacked ACK.
bool fits_fast_path(size_t payload_bytes, uint32_t packet_payload_bytes) {
  return payload_bytes + kPiggybackBytes <= packet_payload_bytes;
}

bool is_fast(const wire::OpcodeInfo& op) {
  return (op.verb == wire::Verb::Send || op.verb == wire::Verb::Write) &&
         op.position == wire::Position::Only && op.transport == wire::Transport::Rc &&
         !op.has_invalidate;
}

}  // namespace

// --- sending -------------------------------------------------------------------------------------

inline bool QueuePair::has_one_request() const { return reliable_->has_one_request(); }

QueuePair* Engine::try_fast_send(wire::PacketSink& sink, Instant recent) {
  if (ready_.size() != 1 || !config_.fast_path) [[unlikely]]
    return nullptr;
  QueuePair& qp = *ready_.front();
  // Often the queue pair has only an ACK to send.
  if (qp.type() != QpType::Rc || !qp.has_one_request() || qp.scheduling.reserved_bytes != 0)
    return nullptr;
  return fast_send(qp, sink, recent) ? &qp : nullptr;
}

[[gnu::flatten]] bool Engine::fast_send(QueuePair& qp, wire::PacketSink& sink, Instant recent) {
  if (sink.room() == 0) [[unlikely]]
    return false;
  const wire::LocalPeer* const local = sink.local_peer();
  if (local != nullptr && local->is_full(qp.attributes().path)) [[unlikely]]
    return false;
  if (!qp.try_fast_send(sink, recent)) [[unlikely]]
    return false;
  qp.scheduling.in_ready_list = false;
  ready_.clear();
  return true;
}

void Engine::finish_fast_send(QueuePair& qp, Instant now) {
  qp.finish_fast_send(now);
  schedule(qp);
}

void QueuePair::finish_fast_send(Instant now) { reliable_->finish_fast_send(now); }

bool QueuePair::try_fast_send(wire::PacketSink& sink, Instant recent) {
  if (!may_send() || backoff_.is_full() || common_.has_unwindowed_packet || notification_.is_due())
      [[unlikely]]
    return false;
  Requester& requester = *reliable_;
  auto& responder = static_cast<Responder&>(*responder_);
  wire::OptionalPsn ack;
  if (responder.ready()) {
    ack = responder.ack_to_piggyback();
    if (!ack || !common_.extensions.peer_buffers_requests()) [[unlikely]]
      return false;
  }
  Gather payload;
  if (!requester.prepare_fast_send(sink, recent, payload)) [[unlikely]]
    return false;
  if (ack) common_.acks.offer(*ack);
  requester.commit_fast_send(sink, payload);
  return true;
}

// The caller has checked has_one_request().
bool Requester::prepare_fast_send(const wire::PacketSink& sink, Instant recent, Gather& payload) {
  if (!cursor_.is_at_head() || cursor_.has_outstanding() || recovery_.is_active() ||
      recovery_.is_set(LossRecovery::Timer::Rnr) || denied_) [[unlikely]] {
    return false;
  }
  const SendWqe& wqe = queue().front();
  // A numbered request has begun, or was split for another path.
  if (wqe.numbered || !is_message(wqe.op) ||
      !fits_fast_path(wqe.length, qp_.packet_payload_bytes()) ||
      (can_access() && direct_.is_likely(sink, recent))) [[unlikely]] {
    return false;
  }
  return gather_message(qp_, queue(), cursor_.index(), 0, wqe.length, payload);
}

void Requester::commit_fast_send(wire::PacketSink& sink, const Gather& payload) {
  cursor_.number(qp_.packet_payload_bytes(), *qp_.peer);
  const SendWqe& wqe = queue().front();
  const Chunk chunk{.at = cursor_.place(), .first = wqe.first_psn};
  wire::Packet p;
  p.bth.psn = chunk.first;
  p.bth.ack_request = ack_requests_.next({.ends_message = true});
  p.bth.extension_flags = qp_.extensions.request_flag(false);
  p.in_window = p.last = true;
  fill_message(wqe, 0, p);
  piggyback_ack(chunk.at.index, p);
  push_packet(qp_, sink, p, payload.view(), wqe.length);
  cursor_.advance(1);
  recovery_.add_in_flight(cursor_.cost_of(chunk));
}

// Its packet is the only one in flight.
void Requester::finish_fast_send(Instant now) { recovery_.start_timers(cursor_.unacked(), now); }

// --- receiving -----------------------------------------------------------------------------------

// The packet is alone in its batch.
[[gnu::flatten]] bool Engine::try_fast_receive(const wire::RxPacket& rx, Instant now,
                                               Arrivals& arrivals) {
  if (rx.bytes.empty() || !config_.fast_path) return false;
  const wire::OpcodeInfo& op = wire::info_of(static_cast<uint8_t>(rx.bytes.front()));
  if (!is_fast(op)) return false;
  const wire::Packet* const packet = parse(rx);
  if (packet == nullptr) return false;
  QueuePair* const qp = find(packet->bth.destination);
  if (qp == nullptr || qp->type() != QpType::Rc || !qp->try_fast_receive(*packet, *rx.meta, now)) {
    return false;
  }
  state_.counters.add(CounterId::packets_received);
  arrivals.messages = true;
  arrivals.receives = op.verb == wire::Verb::Send || op.has_immediate;
  if (qp->state() != QpState::Rts || !qp->peer()->waiting.empty() || state_.overrun) [[unlikely]] {
    after_change(*qp, now);
  } else {  // an ACK is due
    make_ready(*qp);
    schedule(*qp);
  }
  return true;
}

// The caller has checked is_fast().
bool QueuePair::try_fast_receive(const wire::Packet& p, const wire::RxMeta& meta, Instant now) {
  if (common_.state != QpState::Rts || backoff_.is_waiting() || pacer_.limited() ||
      !p.bth.ack_request || p.bth.becn || wire::is_marked(meta.traffic_class) ||
      (p.bth.pkey & 0x7FFF) != 0x7FFF || !from_peer(meta)) [[unlikely]] {
    return false;
  }
  Requester& requester = *reliable_;
  auto& responder = static_cast<Responder&>(*responder_);
  wire::OptionalPsn ack;
  std::span<const std::byte> payload = p.payload;
  if (p.bth.extension_flags != 0) {
    ack = common_.extensions.peek_piggyback(p);
    if (!ack && !common_.extensions.is_in_order(p.bth)) [[unlikely]]
      return false;
    if (ack && p.in_front.empty()) payload = payload.subspan(kPiggybackBytes);
  }
  if (!p.in_front.empty() && (!ack || p.in_front.size() != kPiggybackBytes)) [[unlikely]]
    return false;
  MemoryArea to{};
  if (!fits_fast_path(payload.size(), common_.packet_payload_bytes_of(p)) ||
      (ack && !requester.awaits_fast_ack(*ack)) || !responder.prepare_fast_receive(p, payload, to))
      [[unlikely]] {
    return false;
  }
  // The ACK first, as in take_piggybacked_ack().
  if (ack) requester.commit_fast_ack(now);
  check_failure();
  if (common_.state != QpState::Rts) [[unlikely]] {  // its completion overran the completion queue
    common_.count(CounterId::qp_not_ready);
    return true;
  }
  responder.commit_fast_receive(p, payload, to);
  check_failure();
  return true;
}

bool Requester::awaits_fast_ack(wire::Psn psn) const {
  if (recovery_.is_active() || cursor_.unacked() != psn || !cursor_.has_outstanding()) [[unlikely]]
    return false;
  const SendWqe& wqe = queue().at(queue().head());
  return wqe.packets == 1 && is_message(wqe.op);
}

void Requester::commit_fast_ack(Instant now) {
  qp_.peer->unresponsive_until = Instant{};
  recovery_.begin_response(false);
  acknowledge(1, now);
}

// The payload of a SEND goes into the next receive: the application does not look there before the
// completion.
bool Responder::prepare_fast_receive(const wire::Packet& p, std::span<const std::byte> payload,
                                     MemoryArea& to) {
  const bool is_next =
      p.bth.psn == expected_ && !message_ && reorder_buffer_.empty() && !qp_.acks.nak();
  if (!is_next || (p.bth.extension_flags != 0 && !qp_.extensions.peer_reads_sack())) [[unlikely]]
    return false;
  if (p.op.verb == wire::Verb::Send) return receives_.consume_whole(payload);
  if ((qp_.attr.access & kRemoteWrite) == 0 || p.reth.length != payload.size()) [[unlikely]]
    return false;
  if (!payload.empty()) {
    to = qp_.engine.memory.resolve(p.reth.rkey, qp_.pd, qp_.qpn, p.reth.address, payload.size(),
                                   kRemoteWrite);
    if (to == nullptr) [[unlikely]]
      return false;
  }
  return !p.op.has_immediate || receives_.consume();
}

void Responder::commit_fast_receive(const wire::Packet& p, std::span<const std::byte> payload,
                                    MemoryArea to) {
  expected_ = expected_ + 1;
  ++msn_;
  nak_sent_ = false;
  qp_.acks.on_ack_due();
  const bool is_write = p.op.verb == wire::Verb::Write;
  if (is_write) place(to, payload, true);
  if (is_write && !p.op.has_immediate) return;
  finish_receive(p, is_write ? WcOpcode::ReceiveWriteImm : WcOpcode::Receive,
                 static_cast<uint32_t>(payload.size()));
}

}  // namespace verbena::core
