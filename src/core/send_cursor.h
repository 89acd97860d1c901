// SendCursor: the requester's send queue and its position in it, in work requests and in PSNs. The
// queue is the retransmission buffer, so any PSN in flight can be traced back to its work request.
//
//   queue:  head ......................... index ............ tail
//   PSNs:   unacked ............ next      (none yet)
//           |<--- outstanding --->|
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/peer_path.h"
#include "core/work_queue.h"
#include "wire/psn.h"

namespace verbena::core {

inline bool is_before(wire::Psn a, wire::Psn b) { return a.distance_from(b) < 0; }

class SendCursor {
 public:
  // Where a PSN lies in the send queue.
  struct Place {
    uint64_t index = 0;   // of the work request
    uint32_t packet = 0;  // of its packets
  };
  // Consecutive packets of one work request: those that belong to one request packet, which are
  // several only for a READ, or packets of a SEND or WRITE that leave one after the other.
  struct Chunk {
    Place at;
    uint32_t packets = 1;
    wire::Psn first{0};
    bool is_retransmit = false;
    wire::Psn end() const { return first + packets; }
  };

  SendCursor(uint32_t max_wr, uint32_t max_sges, uint32_t max_inline)
      : queue_(max_wr, max_sges, max_inline) {}

  SendQueue& queue() { return queue_; }
  const SendQueue& queue() const { return queue_; }

  // Numbering begins with this PSN.
  void start(wire::Psn first);
  // The queue was emptied and nothing is numbered until start().
  void reset();
  // The queue was emptied; the PSNs in flight are used again.
  void drop_outstanding();
  // Outstanding work requests were retracted and get new PSNs. Returns their number.
  uint32_t rewind();

  bool is_started() const { return is_started_; }
  wire::Psn next() const { return next_; }        // the PSN of the next new packet
  wire::Psn unacked() const { return unacked_; }  // the first that has no ACK or response yet
  bool has_outstanding() const { return unacked_ != next_; }
  bool is_outstanding(wire::Psn psn) const {
    return !is_before(psn, unacked_) && is_before(psn, next_);
  }

  Place place() const { return {index_, packet_}; }
  uint64_t index() const { return index_; }
  SendWqe& request() { return queue_.at(index_); }
  const SendWqe& request() const { return queue_.at(index_); }
  bool is_at_head() const { return index_ == queue_.head(); }
  bool is_at_end() const { return index_ == queue_.tail(); }
  bool is_inside_request() const { return packet_ != 0; }

  // Gives the request at the cursor its PSNs. A READ is split into chunks that take at most half
  // of the congestion window.
  void number(uint32_t packet_payload_bytes, const PeerPath& peer);
  // Packets of the request at the cursor were sent.
  void advance(uint32_t packets) {
    next_ = next_ + packets;
    packet_ += packets;
    if (packet_ != queue_.at(index_).packets) return;
    ++index_;
    packet_ = 0;
  }
  // The request at the cursor was done without a packet.
  void skip_request() { ++index_; }
  void acknowledge(uint32_t packets) { unacked_ = unacked_ + packets; }

  // From `at` to the end of its chunk. To the peer, a chunk looks like a READ that is resumed after
  // a loss.
  Chunk chunk_at(Place at) const {
    const SendWqe& wqe = queue_.at(at.index);
    Chunk chunk{.at = at, .first = wqe.first_psn + at.packet};
    if (wqe.op == SendOp::Read) {
      const uint32_t chunk_left = wqe.chunk_packets - at.packet % wqe.chunk_packets;
      chunk.packets = std::min(wqe.packets - at.packet, chunk_left);
    }
    return chunk;
  }
  Chunk next_chunk() const { return chunk_at(place()); }
  // Of an outstanding PSN.
  Place place_of(wire::Psn psn) const;
  Place place_behind(Place at, uint32_t packets) const {
    at.packet += packets;
    return at.packet == queue_.at(at.index).packets ? Place{at.index + 1, 0} : at;
  }
  // Calls visit(work request, chunk) for the outstanding PSNs of [from, to), in order.
  template <typename Visit>
  void for_each_chunk(wire::Psn from, wire::Psn to, Visit visit) const {
    if (!is_before(from, to)) return;
    Place at = place_of(from);
    while (is_before(from, to)) {
      Chunk chunk = chunk_at(at);
      chunk.packets = std::min(chunk.packets, static_cast<uint32_t>(to.distance_from(from)));
      visit(queue_.at(at.index), chunk);
      from = chunk.end();
      at = place_behind(at, chunk.packets);
    }
  }

  // PSNs that a message takes, with so many payload bytes in each packet.
  static uint32_t packets_of(const SendWqe& wqe, uint32_t packet_payload_bytes) {
    const bool one = wqe.length <= packet_payload_bytes || is_atomic(wqe.op);
    return one ? 1 : (wqe.length - 1) / packet_payload_bytes + 1;
  }
  static uint32_t chunk_packets(uint32_t packet_payload_bytes, uint32_t window);
  // The following need numbered requests.
  static uint32_t packet_bytes(const SendWqe& wqe, uint32_t packet) {
    if (is_atomic(wqe.op)) return 0;
    return std::min(wqe.packet_payload_bytes, wqe.length - packet * wqe.packet_payload_bytes);
  }
  // The share of the congestion window of `count` packets; for a READ, of its responses.
  static uint32_t cost_of(const SendWqe& wqe, uint32_t first, uint32_t count) {
    uint32_t bytes = 0;
    if (!is_atomic(wqe.op) && count != 0) {
      bytes = (count - 1) * wqe.packet_payload_bytes + packet_bytes(wqe, first + count - 1);
    }
    return bytes + count * PeerPath::kPacketOverhead;
  }
  uint32_t cost_of(const Chunk& chunk) const {
    return cost_of(queue_.at(chunk.at.index), chunk.at.packet, chunk.packets);
  }
  uint32_t cost_of(wire::Psn psn) const {
    const Place at = place_of(psn);
    return cost_of(queue_.at(at.index), at.packet, 1);
  }

 private:
  SendQueue queue_;
  // The next new packet is packet `packet_` of work request `index_`.
  uint64_t index_ = 0;
  uint32_t packet_ = 0;
  wire::Psn next_{0};
  wire::Psn unacked_{0};
  bool is_started_ = false;
};

}  // namespace verbena::core
