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
  if (is_message(packet.op)) remarks.offset = offset_of(s, packet);
  if (packet.op.direction == wire::Direction::Request) {
    add_request(s, packet, remarks);
  } else {
    add_response(s, packet, remarks);
  }
  return remarks;
}

// All packets of a message but the last are of one size.
std::optional<uint64_t> Streams::offset_of(Stream& s, const wire::Packet& packet) {
  if (packet.op.position == wire::Position::Only) return 0;
  const auto bytes = static_cast<uint32_t>(packet.payload.size());
  if (packet.op.position == wire::Position::First) {
    s.starts[s.messages++ % s.starts.size()] = {packet.bth.psn, bytes};
    return 0;
  }
  std::optional<uint64_t> offset;
  int32_t nearest = INT32_MAX;
  for (size_t i = 0; i < std::min(s.messages, s.starts.size()); ++i) {
    const int32_t distance = packet.bth.psn.distance_from(s.starts[i].psn);
    if (distance <= 0 || distance >= nearest) continue;
    nearest = distance;
    offset = static_cast<uint64_t>(distance) * s.starts[i].packet_bytes;
  }
  return offset;
}

// Remembers the PSNs from `next` up to `psn` as missing. Returns their number.
uint32_t Streams::skip_to(Stream& s, wire::Psn psn) {
  constexpr int32_t kMostRemembered = 1 << 16;  // a larger step is another connection
  const int32_t gap = psn.distance_from(*s.next);
  if (!s.next_is_known || gap >= kMostRemembered) return 0;
  for (wire::Psn missing = *s.next; missing != psn; missing = missing + 1) {
    s.missing.insert(missing.value());
  }
  return static_cast<uint32_t>(gap);
}

void Streams::add_request(Stream& s, const wire::Packet& packet, Remarks& remarks) {
  const wire::Psn psn = packet.bth.psn;
  s.is_reliable |= packet.op.transport != wire::Transport::Uc;
  if (!s.unacked) s.unacked = psn;
  const int32_t ahead = s.next ? psn.distance_from(*s.next) : 0;
  if (ahead < 0) {
    const bool was_missing = s.missing.erase(psn.value()) != 0;
    remarks.is_retransmission = s.is_reliable && !was_missing;
    if (remarks.is_retransmission) ++s.retransmitted;
    return;
  }
  // Two Verbenas do not send in the order of PSNs.
  const uint32_t gap = ahead > 0 ? skip_to(s, psn) : 0;
  if (packet.bth.extension_flags == 0) remarks.missing = gap;
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
  if (acked_before.distance_from(*requests.next) > 0) {  // responses to a READ, or a gap
    remarks.missing = skip_to(requests, acked_before);
    requests.next = acked_before;
  }
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
