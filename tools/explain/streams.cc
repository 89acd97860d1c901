// The order of PSNs in a stream, and responses.
#include "tools/explain/streams.h"

#include <algorithm>
#include <cstring>

namespace verbena::explain {
namespace {

bool uses_psns(const wire::OpcodeInfo& op) {
  return op.transport == wire::Transport::Rc || op.transport == wire::Transport::Xrc ||
         op.transport == wire::Transport::Uc;
}

bool is_message(const wire::OpcodeInfo& op) {
  return op.verb == wire::Verb::Send || op.verb == wire::Verb::Write ||
         op.verb == wire::Verb::ReadResponse;
}

}  // namespace

size_t StreamIdHash::operator()(const StreamId& id) const {
  uint64_t words[4];
  std::memcpy(words, id.source.bytes.data(), 16);
  std::memcpy(words + 2, id.destination.bytes.data(), 16);
  uint64_t hash = id.qpn;
  for (const uint64_t word : words) hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

Stream& Streams::stream_of(const Datagram& d, uint32_t qpn) {
  const StreamId id{d.source, d.destination, qpn};
  if (latest_ != nullptr && latest_->id == id) return *latest_;
  const auto [found, is_new] = streams_.try_emplace(id);
  latest_ = &found->second;
  if (is_new) {
    latest_->id = id;
    order_.push_back(latest_);
  }
  return *latest_;
}

Remarks Streams::add(const Datagram& datagram, const wire::Packet& packet, Stream*& stream) {
  Stream& s = stream_of(datagram, packet.bth.destination.value());
  stream = &s;
  ++s.packets;
  s.payload_bytes += packet.payload.size();
  Remarks remarks;
  if (packet.op.verb == wire::Verb::Cnp) {
    ++s.cnps;
    return remarks;
  }
  if (!uses_psns(packet.op)) return remarks;
  if (is_message(packet.op)) {
    const bool begins =
        packet.op.position == wire::Position::First || packet.op.position == wire::Position::Only;
    remarks.offset = begins ? 0 : s.message_bytes;
    s.message_bytes = remarks.offset + packet.payload.size();
  }
  if (packet.op.direction == wire::Direction::Request) {
    add_request(s, packet, remarks);
  } else {
    add_response(s, packet, remarks);
  }
  return remarks;
}

void Streams::add_request(Stream& s, const wire::Packet& packet, Remarks& remarks) {
  const wire::Psn psn = packet.bth.psn;
  s.is_reliable |= packet.op.transport != wire::Transport::Uc;
  if (!s.unacked) s.unacked = psn;
  if (s.next) {
    const int32_t ahead = psn.distance_from(*s.next);
    if (ahead < 0) {
      remarks.is_retransmission = s.is_reliable;
      if (s.is_reliable) ++s.retransmitted;
      // A receiver without selective repeat has dropped what followed, and all of it comes again.
      s.next = psn + 1;
      s.next_is_known = packet.op.verb != wire::Verb::ReadRequest;
      return;
    }
    if (ahead > 0 && s.next_is_known) {
      remarks.missing_before = static_cast<uint32_t>(ahead);
      s.missing += remarks.missing_before;
    }
  }
  s.next = psn + 1;
  s.next_is_known = packet.op.verb != wire::Verb::ReadRequest;
}

void Streams::add_response(Stream& s, const wire::Packet& packet, Remarks& remarks) {
  const wire::Psn psn = packet.bth.psn;
  if (s.requests == nullptr) s.requests = find_requests(s, psn);
  const bool is_nak = packet.op.has_aeth && packet.aeth.kind == wire::AckKind::Nak;
  const bool is_rnr = packet.op.has_aeth && packet.aeth.kind == wire::AckKind::RnrNak;
  if (is_nak) ++s.naks;
  if (is_rnr) ++s.rnr_naks;
  if (s.requests == nullptr) return;
  Stream& requests = *s.requests;
  // A NAK names the PSN that is expected; everything before it was received.
  const wire::Psn acked_before = is_nak || is_rnr ? psn : psn + 1;
  if (acked_before.distance_from(*requests.unacked) > 0) requests.unacked = acked_before;
  if (acked_before.distance_from(*requests.next) > 0) requests.next = acked_before;  // of a READ
  remarks.requests = &requests;
  remarks.outstanding =
      static_cast<uint32_t>(std::max(0, (*requests.next).distance_from(*requests.unacked)));
}

// The requests in the other direction that wait for a response with this PSN.
Stream* Streams::find_requests(const Stream& responses, wire::Psn psn) {
  constexpr int32_t kMostBehindARead = 1 << 16;  // responses to the latest READ
  for (Stream* const s : order_) {
    if (!s->is_reliable || s->id.source != responses.id.destination ||
        s->id.destination != responses.id.source || !s->unacked) {
      continue;
    }
    const int32_t before = psn.distance_from(*s->unacked);
    const int32_t behind = psn.distance_from(*s->next);
    if (before >= 0 && (behind < 0 || (!s->next_is_known && behind < kMostBehindARead))) return s;
  }
  return nullptr;
}

}  // namespace verbena::explain
