// The order in which new messages leave. The kernel takes packets of one size in one go, but a
// message has several: a WRITE's first packet is longer than the others, its last one often
// shorter. Where the peer takes packets in any order, those of all messages that may leave now are
// sorted by size. Whatever leaves before its turn says so (core/ext), so that the
// peer does not take it for the sign of a loss.
#include <algorithm>
#include <array>

#include "core/posting.h"
#include "core/requester.h"

namespace verbena::core {
namespace {

// Packets of one kind are of one size, as long as messages are of one kind.
enum class Kind : uint8_t { First, Full, Rest };
constexpr std::array kKinds = {Kind::First, Kind::Full, Kind::Rest};

Kind kind_of(const SendWqe& wqe, uint32_t packet) {
  if (packet == 0) return Kind::First;
  if (packet + 1 < wqe.packets) return Kind::Full;
  const bool plain = wqe.op == SendOp::Send || wqe.op == SendOp::Write;
  return plain && wqe.length % wqe.cut_bytes == 0 ? Kind::Full : Kind::Rest;
}

}  // namespace

// In bytes. The peer acknowledges nothing before most of a batch is there, which must not take as
// long as the timeout: half of it at 100 Mb/s, and less for each time that it came to that.
uint32_t Requester::batch_limit() const {
  if (qp_.attr.timeout == 0) return UINT32_MAX;
  constexpr int64_t kNanosecondsPerByte = 80;
  const int64_t bytes = ack_timeout(qp_.attr.timeout).ns / 2 / kNanosecondsPerByte;
  return static_cast<uint32_t>(std::min<int64_t>(bytes >> 2 * batch_timeouts_, UINT32_MAX));
}

// How many packets from the cursor on may leave sorted; 0 if there is nothing to sort.
uint32_t Requester::batch_packets(uint32_t most) {
  if (!qp_.extensions.peer_buffers_requests() || board_ || qp_.peer->is_in_memory() ||
      qp_.attr.rate_limit != 0 || qp_.state != QpState::Rts) {
    return 0;
  }
  uint32_t packets = 0;
  uint32_t messages = 0;
  uint32_t room = std::min(qp_.peer->room(), batch_limit());
  uint32_t begun = cursor_packet_;
  for (uint64_t i = cursor_; i != queue_.tail() && packets < most && room > 0; ++i, begun = 0) {
    const SendWqe& wqe = queue_.at(i);
    const uint32_t left = packets_of(wqe) - begun;
    const bool fenced = (wqe.flags & kFence) != 0 && i != cursor_;
    Gather all;  // every packet's bytes will be there when its turn comes
    if (!is_message(wqe.op) || fenced || begun + left == 1 ||
        !gather_message(qp_, queue_, i, 0, wqe.length, all)) {
      break;
    }
    const uint32_t full = qp_.cut_bytes() + PeerPath::kPacketOverhead;
    const uint32_t taken = std::min({left, most - packets, (room - 1) / full + 1});
    packets += taken;
    ++messages;
    if (taken < left) break;
    const uint32_t bytes = wqe.length - begun * qp_.cut_bytes();
    room -= std::min(room, bytes + taken * PeerPath::kPacketOverhead);
  }
  // Without memory for the books they leave one after the other.
  const bool possible =
      messages > 1 && try_allocating([&] { reserve_ahead(batches_, batches_.size() + 1); });
  return possible ? packets : 0;
}

void Requester::send_batch(uint32_t packets, wire::PacketSink& sink, Instant now) {
  const wire::Psn first = next_;
  for (uint32_t left = packets; left > 0;) {
    SendWqe& wqe = queue_.at(cursor_);
    if (!wqe.numbered) number(wqe);
    const uint32_t taken = std::min(left, wqe.packets - cursor_packet_);
    advance_cursor(taken);
    left -= taken;
  }
  batches_.push_back({first, next_});
  for_each_by_size(first, next_, [&](Place at, bool early) {
    const Piece piece = piece_at(at);
    push_request(piece, sink, --packets == 0, early);
    note_sent(piece);
  });
  start_clocks(first, now);
}

// Calls visit(place, whether something before it in [from, to) is behind it in this order).
template <typename Visit>
void Requester::for_each_by_size(wire::Psn from, wire::Psn to, Visit visit) const {
  const Place begin = place_of(from);
  const auto count = static_cast<uint32_t>(to.distance_from(from));
  for (const Kind kind : kKinds) {
    bool behind = false;
    Place at = begin;
    for (uint32_t i = 0; i < count; ++i) {
      const SendWqe& wqe = queue_.at(at.index);
      const Kind its = kind_of(wqe, at.packet);
      if (its == kind) visit(at, behind);
      behind |= its > kind;
      if (++at.packet == wqe.packets) at = {at.index + 1, 0};
    }
  }
}

// A scoreboard that has just been made takes all for sent in the order of PSNs.
void Requester::recall_order() {
  for (const Batch& batch : batches_) {
    const wire::Psn from = batch.first.distance_from(unacked_) < 0 ? unacked_ : batch.first;
    uint32_t sent = board_->at(from).sent;
    for_each_by_size(from, batch.end, [&](Place at, bool) {
      board_->at(queue_.at(at.index).first_psn + at.packet).sent = sent++;
    });
  }
}

}  // namespace verbena::core
