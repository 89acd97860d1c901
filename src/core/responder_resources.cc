// The ring of executed requests, and which of them a duplicate repeats.
#include "core/responder_resources.h"

#include <algorithm>
#include <utility>

namespace verbena::core {
namespace {

using Resource = ResponderResources::Resource;

// Whether `duplicate` asks for packets of the READ's response, `from` packets behind its beginning.
// A duplicate READ may start later than the original, at the first lost packet.
bool repeats_read(const Resource& r, const wire::Packet& duplicate, uint32_t from,
                  uint32_t packet_payload_bytes) {
  const uint64_t skipped = uint64_t{from} * r.packet_payload_bytes;
  // A response of one packet does not depend on the packet payload size. The request may have come
  // through shared memory and, after the link ended, its duplicate over the wire.
  const uint32_t packets = read_response_packets(duplicate.reth.length, packet_payload_bytes);
  const bool same_size =
      packet_payload_bytes == r.packet_payload_bytes || (r.packets == 1 && packets == 1);
  const bool within = same_size && duplicate.reth.rkey == r.reth.rkey &&
                      duplicate.reth.address == r.reth.address + skipped &&
                      duplicate.reth.length <= r.reth.length - skipped;
  // All packets except the original's last are full, so a shorter duplicate must end with a full
  // packet.
  const bool whole =
      duplicate.reth.length == r.reth.length - skipped ||
      (duplicate.reth.length != 0 && duplicate.reth.length % r.packet_payload_bytes == 0);
  return within && whole;
}

}  // namespace

void ResponderResources::resize(uint32_t count) {
  std::vector<Resource> kept;
  kept.reserve(std::max<size_t>(ring_.size(), count));
  for (size_t age = ring_.size(); age >= 1; --age) {  // oldest first
    const Resource& r = by_age(age);
    if (r.used) kept.push_back(r);
  }
  if (kept.size() > count) kept.erase(kept.begin(), kept.end() - static_cast<ptrdiff_t>(count));
  pending_ = static_cast<uint32_t>(
      std::ranges::count_if(kept, [](const Resource& r) { return r.pending; }));
  next_ = count == 0 ? 0 : kept.size() % count;
  kept.resize(count);
  ring_ = std::move(kept);
}

void ResponderResources::forget_all() {
  std::ranges::fill(ring_, Resource{});
  next_ = 0;
  pending_ = 0;
}

void ResponderResources::clear() {
  ring_.clear();
  next_ = 0;
  pending_ = 0;
}

Resource* ResponderResources::take(wire::Verb verb, wire::Psn first, uint32_t pd) {
  if (!has_free()) return nullptr;
  Resource& r = ring_[next_];
  if (r.pending) --pending_;
  next_ = (next_ + 1) % ring_.size();
  r = Resource{};
  r.used = true;
  r.verb = verb;
  r.first = first;
  r.pd = pd;
  return &r;
}

void ResponderResources::start_response(Resource& r, uint32_t from, uint32_t packets,
                                        bool is_replay) {
  uint32_t end = from + packets;
  if (r.pending) {  // another part of it was requested: sends both
    from = std::min(from, r.next_packet);
    end = std::max(end, r.end_packet);
  } else {
    ++pending_;
  }
  r.pending = true;
  r.is_replay = is_replay;
  r.first_packet = r.next_packet = from;
  r.end_packet = end;
}

bool ResponderResources::replay(const wire::Packet& duplicate, uint32_t packet_payload_bytes) {
  // Newest first: PSNs wrap around, so an old resource may match as well.
  for (size_t age = 1; age <= ring_.size(); ++age) {
    Resource& r = by_age(age);
    if (!r.used || r.verb != duplicate.op.verb) continue;
    const int32_t distance = duplicate.bth.psn.distance_from(r.first);
    if (distance < 0 || distance >= static_cast<int32_t>(r.packets)) continue;
    if (r.verb != wire::Verb::ReadRequest) {
      start_response(r, 0, 1, true);  // with the result of the first execution
      return true;
    }
    const auto from = static_cast<uint32_t>(distance);
    if (!repeats_read(r, duplicate, from, packet_payload_bytes)) continue;
    start_response(r, from, read_response_packets(duplicate.reth.length, packet_payload_bytes),
                   true);
    return true;
  }
  return false;
}

void ResponderResources::drop_responses() {
  for (Resource& r : ring_) r.pending = false;
  pending_ = 0;
}

Resource* ResponderResources::next_pending() {
  Resource* best = nullptr;
  for (Resource& r : ring_) {
    if (r.pending && (best == nullptr || r.first.distance_from(best->first) < 0)) best = &r;
  }
  return best;
}

}  // namespace verbena::core
