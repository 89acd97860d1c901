// Numbering, and the lookup of a PSN's work request.
#include "core/send_cursor.h"

namespace verbena::core {
namespace {

// The responses to a READ chunk must fit into this side's receive buffer.
constexpr uint32_t kMaxReadChunkBytes = 64 * 1024;

}  // namespace

void SendCursor::start(wire::Psn first) {
  next_ = unacked_ = first;
  index_ = queue_.head();
  packet_ = 0;
  is_started_ = true;
}

void SendCursor::reset() {
  index_ = queue_.head();
  packet_ = 0;
  is_started_ = false;
}

void SendCursor::drop_outstanding() {
  index_ = queue_.head();
  packet_ = 0;
  next_ = unacked_;
}

uint32_t SendCursor::rewind() {
  uint32_t requests = 0;
  for (uint64_t i = queue_.head(); i != queue_.tail() && queue_.at(i).numbered; ++i) {
    queue_.at(i).numbered = false;
    ++requests;
  }
  drop_outstanding();
  return requests;
}

// The responder has one resource for each chunk. A numbered chunk never changes, so a retransmitted
// request stays within one resource.
void SendCursor::number(uint32_t packet_payload_bytes, const PeerPath& peer) {
  SendWqe& wqe = request();
  wqe.first_psn = next_;
  wqe.packet_payload_bytes = packet_payload_bytes;
  wqe.packets = packets_of(wqe, packet_payload_bytes);
  if (wqe.packets > 1) wqe.chunk_packets = chunk_packets(packet_payload_bytes, peer.window());
  wqe.numbered = true;
}

uint32_t SendCursor::chunk_packets(uint32_t packet_payload_bytes, uint32_t window) {
  return std::max(std::min(window / 2, kMaxReadChunkBytes) / packet_payload_bytes, 1u);
}

SendCursor::Place SendCursor::place_of(wire::Psn psn) const {
  // All requests before the cursor have PSNs, in order: local ones leave the queue at once.
  uint64_t from = queue_.head();
  uint64_t to = packet_ != 0 ? index_ : index_ - 1;
  while (from < to) {
    const uint64_t middle = from + (to - from + 1) / 2;
    if (is_before(psn, queue_.at(middle).first_psn)) {
      to = middle - 1;
    } else {
      from = middle;
    }
  }
  return {from, static_cast<uint32_t>(psn.distance_from(queue_.at(from).first_psn))};
}

}  // namespace verbena::core
