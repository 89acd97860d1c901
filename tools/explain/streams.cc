// The order of PSNs in a stream, and responses.
#include "tools/explain/streams.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/bytes.h"
#include "core/ext/extension_flags.h"

namespace verbena::explain {
namespace {

// A larger step is another connection of the queue pair number.
constexpr int32_t kSameConnection = 1 << 16;
constexpr size_t kMostMissing = 1 << 20;  // so that no file exhausts the memory

bool uses_psns(const wire::OpcodeInfo& op) {
  return op.transport == wire::Transport::Rc || op.transport == wire::Transport::Xrc ||
         op.transport == wire::Transport::Uc;
}

bool is_message(const wire::OpcodeInfo& op) {
  return op.verb == wire::Verb::Send || op.verb == wire::Verb::Write ||
         op.verb == wire::Verb::ReadResponse;
}

// Either end of a connection has its own value.
bool has_piggyback(const wire::Packet& p) {
  constexpr auto kLower = core::flags_sent_by(wire::Qpn(1), wire::Qpn(2)).piggyback;
  constexpr auto kHigher = core::flags_sent_by(wire::Qpn(2), wire::Qpn(1)).piggyback;
  const uint8_t flags = p.bth.extension_flags;
  return p.op.direction == wire::Direction::Request && p.op.position == wire::Position::Only &&
         (flags == kLower || flags == kHigher) && p.payload.size() >= core::kPiggybackBytes;
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
  Remarks remarks;
  const size_t behind_headers = datagram.length - packet.op.header_bytes;
  remarks.payload_bytes = behind_headers - std::min<size_t>(packet.bth.pad, behind_headers);
  if (uses_psns(packet.op) && has_piggyback(packet)) take_piggyback(packet, s, remarks);
  s.payload_bytes += remarks.payload_bytes;
  if (packet.op.verb == wire::Verb::Cnp) {
    ++s.cnps;
    return remarks;
  }
  if (!uses_psns(packet.op)) return remarks;
  if (is_message(packet.op)) remarks.offset = offset_of(s, packet, remarks.payload_bytes);
  if (packet.op.direction == wire::Direction::Request) {
    add_request(s, packet, remarks);
  } else {
    add_response(s, packet, remarks);
  }
  return remarks;
}

// All packets of a message but the last are of one size.
std::optional<uint64_t> Streams::offset_of(Stream& s, const wire::Packet& packet,
                                           size_t payload_bytes) {
  if (packet.op.position == wire::Position::Only) return 0;
  if (packet.op.position == wire::Position::First) {
    s.starts[s.messages++ % s.starts.size()] = {packet.bth.psn,
                                                static_cast<uint32_t>(payload_bytes)};
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
  const int32_t gap = psn.distance_from(*s.next);
  if (!s.next_is_known || missing_ + static_cast<size_t>(gap) > kMostMissing) return 0;
  for (wire::Psn missing = *s.next; missing != psn; missing = missing + 1) {
    missing_ += s.missing.insert(missing.value()).second ? 1 : 0;
  }
  return static_cast<uint32_t>(gap);
}

// The queue pair number has another connection now.
void Streams::begin_again(Stream& s) {
  missing_ -= s.missing.size();
  s.missing.clear();
  s.next = s.unacked = s.nak_from = s.refused = {};
  s.messages = 0;
  if (s.responses != nullptr) s.responses->requests = nullptr;
  s.responses = nullptr;
}

// Two Verbenas: the PSN of an ACK is in front of the payload. It belongs to the requests in the
// other direction.
void Streams::take_piggyback(const wire::Packet& packet, Stream& s, Remarks& remarks) {
  remarks.payload_bytes -= std::min(remarks.payload_bytes, core::kPiggybackBytes);
  remarks.piggybacked = wire::Psn(load_be32(packet.payload.data()));
  s.has_responses = true;
  if (s.requests != nullptr || bind(s, *remarks.piggybacked)) {
    Remarks ignored;
    acknowledge(*s.requests, *remarks.piggybacked + 1, ignored);
  }
}

void Streams::add_request(Stream& s, const wire::Packet& packet, Remarks& remarks) {
  const wire::Psn psn = packet.bth.psn;
  s.is_reliable |= packet.op.transport != wire::Transport::Uc;
  if (s.next && std::abs(psn.distance_from(*s.next)) >= kSameConnection) begin_again(s);
  if (!s.unacked) s.unacked = psn;
  const int32_t ahead = s.next ? psn.distance_from(*s.next) : 0;
  if (ahead < 0) {
    const bool was_missing = s.missing.erase(psn.value()) != 0;
    missing_ -= was_missing ? 1 : 0;
    const bool was_reported = s.nak_from && psn.distance_from(*s.nak_from) >= 0;
    remarks.is_retransmission = s.is_reliable && (!was_missing || was_reported);
    remarks.first_copy_is_missing = was_missing;
    if (remarks.is_retransmission) ++(was_missing ? s.recovered : s.retransmitted);
    return;
  }
  // Two Verbenas do not send in the order of PSNs.
  const uint32_t gap = ahead > 0 ? skip_to(s, psn) : 0;
  if (packet.bth.extension_flags == 0) remarks.missing = gap;
  s.next = psn + 1;
  s.next_is_known = packet.op.verb != wire::Verb::ReadRequest;
  if (!s.next_is_known) s.latest_read = {psn, packet.reth.length};
}

void Streams::add_response(Stream& s, const wire::Packet& packet, Remarks& remarks) {
  const wire::Psn psn = packet.bth.psn;
  s.has_responses = true;
  const bool is_nak = packet.op.has_aeth && packet.aeth.kind == wire::AckKind::Nak;
  const bool is_rnr = packet.op.has_aeth && packet.aeth.kind == wire::AckKind::RnrNak;
  if (is_nak) ++s.naks;
  if (is_rnr) ++s.rnr_naks;
  if (packet.op.verb == wire::Verb::ReadResponse) add_read_response(s, packet, remarks);
  if (s.requests == nullptr && !bind(s, psn)) return;
  Stream& requests = *s.requests;
  const bool begins_read = packet.op.verb == wire::Verb::ReadResponse &&
                           psn == requests.latest_read.psn && remarks.payload_bytes != 0;
  if (begins_read && !requests.next_is_known) {
    const auto bytes = static_cast<uint32_t>(remarks.payload_bytes);
    requests.next = psn + std::max(1u, (requests.latest_read.packet_bytes + bytes - 1) / bytes);
    requests.next_is_known = true;
  }
  if (is_nak) {
    const bool is_gap =
        static_cast<wire::NakCode>(packet.aeth.value) == wire::NakCode::SequenceError;
    (is_gap ? requests.nak_from : requests.refused) = psn;
  }
  // A NAK names the PSN that is expected; everything before it was received.
  acknowledge(requests, is_nak || is_rnr ? psn : psn + 1, remarks);
}

void Streams::acknowledge(Stream& requests, wire::Psn before, Remarks& remarks) {
  if (before.distance_from(*requests.unacked) > 0) requests.unacked = before;
  if (before.distance_from(*requests.next) > 0) {  // responses to a READ, or a gap
    remarks.missing += skip_to(requests, before);
    requests.next = before;
  }
  remarks.requests = &requests;
  remarks.outstanding =
      static_cast<uint32_t>(std::max(0, (*requests.next).distance_from(*requests.unacked)));
}

// The responses to one READ are consecutive.
void Streams::add_read_response(Stream& s, const wire::Packet& packet, Remarks& remarks) {
  const wire::Psn psn = packet.bth.psn;
  const bool goes_on =
      packet.op.position == wire::Position::Middle || packet.op.position == wire::Position::Last;
  const int32_t gap = s.next_response && goes_on ? psn.distance_from(*s.next_response) : 0;
  if (gap > 0 && gap < kSameConnection) {
    remarks.missing = static_cast<uint32_t>(gap);
    s.missing_responses += remarks.missing;
  }
  s.next_response = psn + 1;
}

// Finds the requests in the other direction that wait for a response with this PSN. Several queue
// pairs may use the same PSNs: then nothing is known.
bool Streams::bind(Stream& responses, wire::Psn psn) {
  constexpr int32_t kMostBehindARead = 1 << 16;  // responses to the latest READ
  Stream* only = nullptr;
  for (Stream* const s : order_) {
    if (!s->is_reliable || s->responses != nullptr || !s->unacked ||
        s->id.source != responses.id.destination || s->id.destination != responses.id.source) {
      continue;
    }
    const int32_t before = psn.distance_from(*s->unacked);
    const int32_t behind = psn.distance_from(*s->next);
    if (before < 0 || (behind >= 0 && (s->next_is_known || behind >= kMostBehindARead))) continue;
    if (only != nullptr) return false;
    only = s;
  }
  if (only == nullptr) return false;
  responses.requests = only;
  only->responses = &responses;
  return true;
}

}  // namespace verbena::explain
