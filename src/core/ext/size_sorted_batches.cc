// Which packets leave sorted by size.
#include "core/ext/size_sorted_batches.h"

#include <algorithm>

#include "core/loss_recovery.h"
#include "core/posting.h"

namespace verbena::core {

SizeSortedBatches::Kind SizeSortedBatches::kind_of(const SendWqe& wqe, uint32_t packet) {
  if (packet == 0) return Kind::First;
  if (packet + 1 < wqe.packets) return Kind::Full;
  const bool plain = wqe.op == SendOp::Send || wqe.op == SendOp::Write;
  return plain && wqe.length % wqe.packet_payload_bytes == 0 ? Kind::Full : Kind::Rest;
}

uint32_t SizeSortedBatches::packets_of_kind(const SendWqe& wqe, uint32_t packet) {
  if (kind_of(wqe, packet) != Kind::Full) return 1;
  const uint32_t last = wqe.packets - 1;
  return last - packet + (kind_of(wqe, last) == Kind::Full ? 1 : 0);
}

// The peer sends no ACK before it has received most of a batch, which must not take as long as the
// ACK timeout: half of it at 100 Mb/s, and less after each timeout.
uint32_t SizeSortedBatches::max_bytes() const {
  if (qp_.attr.timeout == 0) return UINT32_MAX;
  constexpr int64_t kNanosecondsPerByte = 80;
  const int64_t bytes = ack_timeout(qp_.attr.timeout).ns / 2 / kNanosecondsPerByte;
  return static_cast<uint32_t>(std::min<int64_t>(bytes >> 2 * timeouts_, UINT32_MAX));
}

void SizeSortedBatches::on_timed_out() {
  constexpr uint32_t kMaxTimeouts = 15;  // batches are empty long before
  if (!batches_.empty()) timeouts_ = std::min(timeouts_ + 1, kMaxTimeouts);
}

uint32_t SizeSortedBatches::plan(uint32_t max_packets) {
  packets_before_next_plan_ = UINT32_MAX;
  if (!qp_.extensions.peer_buffers_requests() || qp_.peer->is_in_memory() ||
      qp_.attr.rate_limit != 0 || qp_.state != QpState::Rts) {
    return 0;
  }
  const uint32_t payload_bytes = qp_.packet_payload_bytes();
  uint32_t packets = 0;
  uint32_t messages = 0;
  uint32_t room = std::min(qp_.peer->room(), max_bytes());
  uint32_t begun = cursor_.place().packet;
  for (uint64_t i = cursor_.index();
       i != cursor_.queue().tail() && packets < max_packets && room > 0; ++i, begun = 0) {
    const SendWqe& wqe = cursor_.queue().at(i);
    const uint32_t left =
        SendCursor::packets_of(wqe, wqe.numbered ? wqe.packet_payload_bytes : payload_bytes) -
        begun;
    const bool fenced = (wqe.flags & kFence) != 0 && i != cursor_.index();
    Gather all;  // the payload of every packet can be gathered later
    if (!is_message(wqe.op) || fenced || begun + left == 1 ||
        !gather_message(qp_, cursor_.queue(), i, 0, wqe.length, all)) {
      packets_before_next_plan_ = UINT32_MAX;  // this message is never sorted
      break;
    }
    const uint32_t full = payload_bytes + PeerPath::kPacketOverhead;
    const uint32_t taken = std::min({left, max_packets - packets, (room - 1) / full + 1});
    packets += taken;
    ++messages;
    // A second message comes into reach as the first one leaves.
    packets_before_next_plan_ = std::max(left - taken, 1u);
    if (taken < left) break;
    const uint32_t bytes = wqe.length - begun * payload_bytes;
    room -= std::min(room, bytes + taken * PeerPath::kPacketOverhead);
  }
  const bool is_only_message = cursor_.index() + 1 == cursor_.queue().tail();
  if (is_only_message) packets_before_next_plan_ = UINT32_MAX;
  // Without memory for the record, packets leave in PSN order.
  const bool possible =
      messages > 1 && try_allocating([&] { reserve_ahead(batches_, batches_.size() + 1); });
  return possible ? packets : 0;
}

void SizeSortedBatches::advance(uint32_t packets) {
  while (packets > 0) {
    const SendWqe& wqe = cursor_.request();
    if (!wqe.numbered) cursor_.number(qp_.packet_payload_bytes(), *qp_.peer);
    const uint32_t taken = std::min(packets, wqe.packets - cursor_.place().packet);
    cursor_.advance(taken);
    packets -= taken;
  }
}

void SizeSortedBatches::restore_order(Scoreboard& board) const {
  for (const Batch& batch : batches_) {
    const wire::Psn from =
        is_before(batch.first, cursor_.unacked()) ? cursor_.unacked() : batch.first;
    uint32_t sent = board.at(from).sent;
    for_each_by_size({from, batch.end}, [&](const SendCursor::Chunk& chunk, bool) {
      for (uint32_t i = 0; i < chunk.packets; ++i) board.at(chunk.first + i).sent = sent++;
    });
  }
}

}  // namespace verbena::core
