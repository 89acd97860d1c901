// The responder's packets: READ and atomic responses, ACKs, NAKs and SACK lists.
#include <algorithm>

#include "core/placement.h"
#include "core/responder.h"
#include "wire/local_peer.h"

namespace verbena::core {

using wire::NakCode;

uint32_t Responder::send_responses(wire::PacketSink& sink, uint32_t budget, bool defer_last) {
  uint32_t sent = 0;
  while (resources_.has_pending() && sent < budget && sink.room() > 0) {
    Resource& r = *resources_.next_pending();
    if (r.is_atomic()) {
      send_atomic_ack(r, sink);
      ++sent;
      continue;
    }
    while (r.pending && sent < budget && sink.room() > 0) {
      const bool has_middle = r.end_packet - r.first_packet > 2;
      const bool last = r.next_packet + 1 == r.end_packet;
      if (defer_last && has_middle && last && sent > 0) return sent;
      if (const uint32_t in_run = send_read_run(r, sink, budget - sent); in_run != 0) {
        sent += in_run;
        continue;
      }
      if (!send_read_packet(r, sink)) return sent;
      ++sent;
    }
  }
  return sent;
}

// Sends packets in the middle of the response as a run. Returns their number; 0: there are less
// than two, or the key does not grant the access.
uint32_t Responder::send_read_run(Resource& r, wire::PacketSink& sink, uint32_t budget) {
  // The first response announces a capability in its header.
  const bool has_equal_headers = r.is_replay || qp_.extensions.announced();
  if (r.next_packet == r.first_packet || !has_equal_headers) return 0;
  const uint32_t bytes = r.packet_payload_bytes;
  const auto limit = static_cast<uint32_t>(
      std::min<size_t>(sink.room_on(qp_.attr.path),
                       std::min({budget, r.end_packet - 1 - r.next_packet,
                                 wire::kMaxPayloadBytes / bytes, wire::TxRun::kMaxPackets})));
  Gather payload;
  if (limit < 2 || !gather_remote(qp_.engine.memory, r.reth.rkey, r.pd, qp_.qpn,
                                  r.reth.address + r.next_packet * bytes, limit * bytes, payload)) {
    return 0;
  }
  wire::Packet p = read_packet(r, wire::Opcode::RcReadResponseMiddle);
  push_run(qp_, sink, p, payload.view().front(), bytes, 0);
  r.next_packet += limit;
  return limit;
}

// The next packet of a READ response.
wire::Packet Responder::read_packet(const Resource& r, wire::Opcode opcode) {
  wire::Packet p;
  p.bth.opcode = qp_.opcode(opcode);
  p.bth.psn = r.first + r.next_packet;
  p.bth.extension_flags = qp_.extensions.response_flag(r.is_replay);
  p.aeth.msn = r.msn;
  p.in_window = qp_.extensions.peer_reads_sack() && !r.is_replay;
  return p;
}

bool Responder::send_read_packet(Resource& r, wire::PacketSink& sink) {
  const uint32_t offset = r.next_packet * r.packet_payload_bytes;
  const uint32_t bytes = std::min(r.packet_payload_bytes, r.reth.length - offset);
  Gather payload;
  if (bytes != 0) {
    const bool granted = gather_remote(qp_.engine.memory, r.reth.rkey, r.pd, qp_.qpn,
                                       r.reth.address + offset, bytes, payload);
    if (!granted && r.is_replay) {  // the peer may have the data already
      qp_.count(CounterId::duplicate_dropped);
      resources_.end_response(r);
      return true;
    }
    if (!granted) {  // deregistered during the response
      wire::Packet request;
      request.bth.opcode = qp_.opcode(wire::Opcode::RcReadRequest);
      request.op = wire::info_of(request.bth.opcode);
      request.bth.psn = r.first;
      request.reth = r.reth;
      expected_ = r.first + r.next_packet;
      drop_responses();
      refuse(Verdict::Denied, request);
      return false;
    }
  }
  const bool first = r.next_packet == r.first_packet;
  const bool last = r.next_packet + 1 == r.end_packet;
  using enum wire::Opcode;
  wire::Packet p = read_packet(r, first ? (last ? RcReadResponseOnly : RcReadResponseFirst)
                                        : (last ? RcReadResponseLast : RcReadResponseMiddle));
  p.bth.becn = qp_.acks.take_echo();
  push_packet(qp_, sink, p, payload.view(), bytes);
  ++r.next_packet;
  if (last) resources_.end_response(r);
  return true;
}

void Responder::send_atomic_ack(Resource& r, wire::PacketSink& sink) {
  wire::Packet p;
  p.bth.opcode = qp_.opcode(wire::Opcode::RcAtomicAck);
  p.bth.psn = r.first;
  p.bth.becn = qp_.acks.take_echo();
  p.aeth.msn = r.msn;
  p.original = r.original;
  push_packet(qp_, sink, p, {}, 0);
  resources_.end_response(r);
}

uint32_t Responder::send_ack(wire::PacketSink& sink, AckPlace place) {
  if (resources_.has_pending() || sink.room() == 0 || !qp_.acks.is_due()) return 0;
  if (qp_.acks.nak()) {
    send_nak(sink, *qp_.acks.nak(), place);
  } else if (has_gap()) {
    send_sack(sink, place);
  } else {
    send_plain_ack(sink, place);
  }
  qp_.acks.on_sent();
  return 1;
}

// The first response announces the capability, which a piggybacked ACK cannot.
wire::OptionalPsn Responder::ack_to_piggyback() const {
  const bool plain = qp_.acks.is_plain() && !resources_.has_pending() && !has_gap();
  return plain && qp_.extensions.announced() ? wire::OptionalPsn(expected_ - 1) : std::nullopt;
}

wire::Packet Responder::ack_packet(wire::Psn psn, const wire::Aeth& aeth, uint8_t flag,
                                   AckPlace place) const {
  wire::Packet p;
  p.bth.opcode = qp_.opcode(wire::Opcode::RcAck);
  p.bth.psn = psn;
  p.bth.extension_flags = flag;
  p.bth.becn = qp_.acks.take_echo();
  p.aeth = aeth;
  p.ends_batch = place != AckPlace::First;
  return p;
}

void Responder::send_plain_ack(wire::PacketSink& sink, AckPlace place) {
  const bool may_be_short =
      qp_.extensions.announced() && qp_.config.type == QpType::Rc && !qp_.acks.has_echo();
  wire::LocalPeer* const local = sink.local_peer();
  order_sent_packet(qp_.attr.dest_qpn.slot());
  if (may_be_short && local != nullptr &&
      local->send_short_ack(qp_.attr.path, {qp_.attr.dest_qpn, expected_ - 1})) {
    return qp_.count(CounterId::packets_sent);
  }
  wire::Packet p = ack_packet(expected_ - 1, {wire::AckKind::Ack, wire::kUnlimitedCredits, msn_},
                              qp_.extensions.response_flag(false), place);
  push_packet(qp_, sink, p, {}, 0);
}

void Responder::send_nak(wire::PacketSink& sink, const wire::Aeth& nak, AckPlace place) {
  const bool reports_loss =
      nak.kind == wire::AckKind::Nak && nak.value == static_cast<uint8_t>(NakCode::SequenceError);
  const uint8_t flag =
      reports_loss ? qp_.extensions.sack_flag() : qp_.extensions.response_flag(false);
  wire::Packet p = ack_packet(expected_, nak, flag, place);
  push_packet(qp_, sink, p, {}, 0);
}

// A sequence NAK that lists the requests buffered behind the gap.
void Responder::send_sack(wire::PacketSink& sink, AckPlace place) {
  const SackList list(reorder_buffer_, expected_);
  const std::span<const std::byte> payload = list.bytes();
  wire::Packet p = ack_packet(
      expected_, {wire::AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), msn_},
      qp_.extensions.sack_flag(), place);
  push_packet(qp_, sink, p, {&payload, 1}, static_cast<uint32_t>(payload.size()));
  qp_.count(CounterId::naks_sequence_sent);
}

}  // namespace verbena::core
