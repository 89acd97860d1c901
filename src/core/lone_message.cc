// The shortcut of those who ask and wait for the answer: one SEND or WRITE, in one packet, where
// nothing else is under way between the two and nothing has to be done first. What is sent, and
// what is left behind, is what Engine::poll_transmit and Engine::on_packets would send and leave;
// only the questions whose answers are known are not asked. Whatever is not that simple goes the
// usual way, from its beginning: each step says so before it has changed anything that counts.
#include "core/engine.h"
#include "core/posting.h"
#include "core/requester.h"
#include "core/responder.h"
#include "wire/local_peer.h"

namespace verbena::core {

// --- sending -------------------------------------------------------------------------------------

// True: that was all there is to send.
[[gnu::flatten]] bool Engine::send_lone(wire::PacketSink& sink, Instant now) {
  if (ready_.size() != 1 || !config_.shortcuts) [[unlikely]]
    return false;
  QueuePair& qp = *ready_.front();
  if (qp.type() != QpType::Rc || qp.promised != 0) [[unlikely]]
    return false;
  if (sink.room() == 0) [[unlikely]]
    return false;
  const wire::LocalPeer* const local = sink.local_peer();
  if (local != nullptr && local->is_full(qp.attributes().path)) [[unlikely]]
    return false;
  if (!qp.send_lone(sink, now)) [[unlikely]]
    return false;
  qp.in_ready_list = false;
  ready_.clear();
  schedule(qp);
  return true;
}

bool QueuePair::send_lone(wire::PacketSink& sink, Instant now) {
  if (!open() || held_since_ != kNever || common_.urgent) [[unlikely]]
    return false;
  auto& requester = static_cast<Requester&>(*requester_);
  auto& responder = static_cast<Responder&>(*responder_);
  std::optional<wire::Psn> carried;
  if (responder.ready()) {
    carried = responder.acknowledgement_to_carry();
    if (!carried) [[unlikely]]
      return false;
  }
  if (!requester.send_lone(sink, now, carried)) [[unlikely]]
    return false;
  if (carried) responder.acknowledgement_carried();
  return true;
}

bool Requester::send_lone(wire::PacketSink& sink, Instant now,
                          const std::optional<wire::Psn>& carried) {
  if (queue_.size() != 1 || cursor_ != queue_.head() || unacked_ != next_ || board_ ||
      rnr_until_ != kNever || denied_ || (carried && !peer_selective_)) [[unlikely]] {
    return false;
  }
  SendWqe& wqe = queue_.front();
  const uint32_t cut = qp_.cut_bytes();
  // One that was numbered has begun, or was cut for another way.
  if (wqe.numbered || !is_message(wqe.op) || wqe.length + kCarriedBytes > cut ||
      may_go_unheard(wqe, sink, now)) [[unlikely]] {
    return false;
  }
  Gather payload;
  if (!gather_message(qp_, queue_, cursor_, 0, wqe.length, payload)) [[unlikely]]
    return false;

  number(wqe);
  wire::TxPacket tx;
  tx.path = qp_.attr.path;
  tx.pad = static_cast<uint8_t>(-wqe.length & 3u);
  tx.payload = payload.view();
  tx.payload_bytes = wqe.length;
  tx.cut_bytes = cut;
  tx.in_window = tx.last = true;
  wire::Bth bth;
  bth.opcode = qp_.opcode(message_opcode(wqe.op, true, true));
  bth.solicited = wqe.op != SendOp::Write && (wqe.flags & kSolicited) != 0;
  bth.pad = tx.pad;
  bth.destination = qp_.attr.dest_qpn;
  bth.ack_request = true;
  if (peer_selective_) bth.mark = carried ? qp_.our_marks().carries : qp_.our_marks().wants;
  bth.psn = next_;
  bth.store(tx.header.data());
  tx.header_bytes = wire::kBthBytes;
  const auto append = [&tx](uint32_t word) {
    store_be32(&tx.header[tx.header_bytes], word);
    tx.header_bytes += sizeof word;
  };
  if (wqe.op == SendOp::Write || wqe.op == SendOp::WriteImm) {
    wire::Reth{wqe.remote_address, wqe.rkey, wqe.length}.store(&tx.header[tx.header_bytes]);
    tx.header_bytes += wire::kRethBytes;
  }
  if (wqe.op != SendOp::Send && wqe.op != SendOp::Write) append(wqe.immediate_or_rkey);
  if (carried) {
    append(carried->value());
    note_carried(cursor_);
  }
  qp_.count(CounterId::packets_sent);
  sink.push(tx);

  const uint32_t cost = wqe.length + PeerWindow::kPacketOverhead;
  qp_.window->sent(cost);
  in_flight_cost_ += cost;
  since_ack_request_ = 0;
  next_ = next_ + 1;
  ++cursor_;
  start_clocks(wqe.first_psn, now);
  return true;
}

// --- receiving -----------------------------------------------------------------------------------

[[gnu::flatten]] bool Engine::take_lone(const wire::RxPacket& rx, Instant now, Arrivals& arrivals) {
  if (rx.bytes.size() < wire::kBthBytes || !config_.shortcuts) [[unlikely]]
    return false;
  LoneMessage message{.bth = wire::Bth::load(rx.bytes.data())};
  QueuePair* const qp = find(message.bth.destination);
  if (qp == nullptr || qp->type() != QpType::Rc || !qp->take_lone(message, rx, now)) [[unlikely]]
    return false;
  arrivals.messages = true;
  arrivals.receives = message.takes_receive();
  state_.counters.add(CounterId::packets_received);
  if (qp->state() != QpState::Rts || !qp->window()->waiting.empty() || !state_.overrun.empty())
      [[unlikely]] {
    after_change(*qp, now);
  } else {  // it has an acknowledgement to send
    make_ready(*qp);
    schedule(*qp);
  }
  return true;
}

bool QueuePair::take_lone(LoneMessage& message, const wire::RxPacket& rx, Instant now) {
  const wire::Bth& bth = message.bth;
  if (common_.state != QpState::Rts || held_until_ != kNever || pacer_.limited() ||
      !bth.ack_request || bth.version != 0 || (bth.pkey & 0x7FFF) != 0x7FFF || !from_peer(*rx.meta))
      [[unlikely]] {
    return false;
  }
  switch (static_cast<wire::Opcode>(bth.opcode)) {
    case wire::Opcode::RcWriteOnlyImm:
      message.is_write = message.has_immediate = true;
      break;
    case wire::Opcode::RcWriteOnly:
      message.is_write = true;
      break;
    case wire::Opcode::RcSendOnlyImm:
      message.has_immediate = true;
      break;
    case wire::Opcode::RcSendOnly:
      break;
    default:
      return false;
  }
  std::span<const std::byte>& payload = message.payload;
  payload = rx.bytes.subspan(wire::kBthBytes);
  if (message.is_write) {
    if (payload.size() < wire::kRethBytes) [[unlikely]]
      return false;
    message.reth = wire::Reth::load(payload.data());
    payload = payload.subspan(wire::kRethBytes);
  }
  if (message.has_immediate) {
    if (payload.size() < wire::kImmediateBytes) [[unlikely]]
      return false;
    message.immediate = load_be32(payload.data());
    payload = payload.subspan(wire::kImmediateBytes);
  }
  std::optional<wire::Psn> carried;
  if (bth.mark != 0) {
    const SelectiveMarks marks = common_.peer_marks();
    if (bth.mark == marks.carries && payload.size() >= kCarriedBytes) {
      carried = wire::Psn(load_be32(payload.data()) & 0xFFFFFF);
      payload = payload.subspan(kCarriedBytes);
    } else if (bth.mark != marks.wants) [[unlikely]] {
      return false;
    }
  }
  if (!rx.apart.empty()) {
    if (!payload.empty()) [[unlikely]]
      return false;
    payload = rx.apart;
  }
  if (bth.pad > payload.size() || payload.size() % 4 != 0) [[unlikely]]
    return false;
  payload = payload.first(payload.size() - bth.pad);

  auto& requester = static_cast<Requester&>(*requester_);
  auto& responder = static_cast<Responder&>(*responder_);
  const uint32_t cut = rx.cut_bytes != 0 ? rx.cut_bytes : wire::bytes_of(common_.attr.path_mtu);
  if (carried && !requester.awaits_lone(*carried)) [[unlikely]]
    return false;
  if (payload.size() > cut || !responder.admit(message)) [[unlikely]]
    return false;
  // Its completion comes first, as in take_carried().
  if (carried) requester.finish_lone(now);
  settle();
  if (common_.state != QpState::Rts) [[unlikely]] {  // that completion was one too many
    common_.count(CounterId::qp_not_ready);
    return true;
  }
  responder.execute(message);
  settle();
  return true;
}

bool Requester::awaits_lone(wire::Psn psn) const {
  if (board_ || unacked_ != psn || unacked_ == next_) [[unlikely]]
    return false;
  const SendWqe& wqe = queue_.at(queue_.head());
  return wqe.packets == 1 && is_message(wqe.op);
}

void Requester::finish_lone(Instant now) {
  qp_.window->stuck_until = Instant{};
  advance_unacked(1, now);
}

// What a SEND brings goes into the receive that is next: nobody looks there before its completion.
bool Responder::admit(LoneMessage& m) {
  const bool due = m.bth.psn == expected_ && !message_ && held_.empty() && !nak_;
  if (!due || (m.bth.mark != 0 && !selective_)) [[unlikely]]
    return false;
  if (!m.is_write) return receives_.place_whole(m.payload);
  if ((qp_.attr.access & kRemoteWrite) == 0 || m.reth.length != m.payload.size() ||
      (m.has_immediate && receives_.empty())) [[unlikely]] {
    return false;
  }
  if (m.payload.empty()) return true;
  m.to = qp_.engine.memory.resolve(m.reth.rkey, qp_.pd, qp_.qpn, m.reth.address, m.payload.size(),
                                   kRemoteWrite);
  return m.to != nullptr;
}

void Responder::execute(const LoneMessage& m) {
  expected_ = expected_ + 1;
  ++msn_;
  nak_sent_ = false;
  ack_due_ = true;
  if (m.is_write) place_last_word_last(m.to, m.payload);
  if (!m.takes_receive()) return;
  receives_.take();
  receives_.complete([&](Completion& c) {
    c.opcode = m.is_write ? WcOpcode::ReceiveWriteImm : WcOpcode::Receive;
    c.byte_count = static_cast<uint32_t>(m.payload.size());
    c.solicited = m.bth.solicited;
    c.source_qpn = qp_.attr.dest_qpn;
    if (!m.has_immediate) return;
    c.flags = kWcWithImmediate;
    c.immediate_or_rkey = m.immediate;
  });
}

}  // namespace verbena::core
