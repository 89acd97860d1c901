// The requester's sending half: posting, the order in which new things may leave, building packets.
#include "core/requester.h"

#include <algorithm>
#include <utility>

#include "core/posting.h"

namespace verbena::core {
namespace {

// A long message asks for an acknowledgement now and then, so that the window keeps moving.
constexpr uint32_t kPacketsPerAckRequest = 8;
// Rates below this are so slow that each packet asks: eight would take a millisecond and more.
constexpr uint32_t kCrawlKbps = 250'000;

// A READ is asked for in pieces of at most this size: the answers arrive unpaced in our own socket.
constexpr uint32_t kMaxReadPieceBytes = 64 * 1024;

Status check_flush(const SendRequest& r) {
  if (r.flush_placement == 0 || (r.flush_placement & ~wire::kPlaceAny) != 0) {
    return Error{EINVAL, "a flush is global, persistent or both"};
  }
  if (r.flush_selectivity > wire::kSelectRegion) {
    return Error{EINVAL, "a flush is of a range or of a memory region"};
  }
  return {};
}

}  // namespace

Requester::Requester(QpCommon& qp, uint32_t max_wr, uint32_t max_sges, uint32_t max_inline)
    : qp_(qp), queue_(max_wr, max_sges, max_inline), answers_(qp.engine.held) {}

Status Requester::post(const SendRequest& r) {
  auto checked = check_request(queue_, r);
  if (!checked.ok()) return checked.error();
  const uint32_t length = checked.value();
  const bool is_word = is_atomic(r.op) || r.op == SendOp::AtomicWrite;
  if (is_word && length != 8) {
    return Error{EINVAL, "an atomic needs exactly 8 bytes of local buffer"};
  }
  if (is_word && r.remote_address % 8 != 0) {
    return Error{EINVAL, "the remote address of an atomic must be 8-byte aligned"};
  }
  if (r.op == SendOp::Flush) {
    if (length != 0) return Error{EINVAL, "a flush has no local buffer"};
    Status flushable = check_flush(r);
    if (!flushable.ok()) return flushable;
  }
  if (is_read_or_atomic(r.op) && qp_.state != QpState::Error && qp_.attr.max_read_atomic == 0) {
    return Error{EINVAL, "READ and atomics need max_rd_atomic > 0 (set at RTR to RTS)"};
  }
  fill_slot(queue_, r, length);
  queue_.push();
  return {};
}

void Requester::reserve_reads(uint32_t count) { reads_.reserve(count); }

void Requester::start() {
  next_ = unacked_ = wire::Psn(qp_.attr.sq_psn);
  cursor_ = queue_.head();
  cursor_packet_ = 0;
  started_ = true;
  renew_retries();
  rnr_retries_left_ = qp_.attr.rnr_retry;
}

void Requester::change_peer(PeerPath* peer) {
  if (qp_.peer != nullptr) qp_.peer->release(in_flight_cost_);
  if (peer != nullptr) peer->on_sent(in_flight_cost_);
  qp_.peer = peer;
}

void Requester::reset() {
  if (qp_.peer != nullptr) qp_.peer->release(in_flight_cost_);
  in_flight_cost_ = 0;
  queue_.clear();
  cursor_ = queue_.head();
  cursor_packet_ = 0;
  started_ = false;
  reads_.clear();
  batches_.clear();
  batch_timeouts_ = 0;
  forget_losses();
  denied_.reset();
  since_ack_request_ = 0;
  tries_ = 0;
  rnr_until_ = kNever;
  direct_bytes_ = 0;
  taken_back_ = false;
}

bool Requester::has_reads_queued() const {
  for (uint64_t i = queue_.head(); i != queue_.tail(); ++i) {
    if (is_read_or_atomic(queue_.at(i).op)) return true;
  }
  return false;
}

uint32_t Requester::packet_bytes(const SendWqe& wqe, uint32_t packet) const {
  if (is_atomic(wqe.op)) return 0;
  return std::min(wqe.cut_bytes, wqe.length - packet * wqe.cut_bytes);
}

uint32_t Requester::packets_of(const SendWqe& wqe) const {
  const uint32_t cut = wqe.numbered ? wqe.cut_bytes : qp_.cut_bytes();
  const bool one = wqe.length <= cut || is_atomic(wqe.op);
  return one ? 1 : (wqe.length - 1) / cut + 1;
}

uint32_t Requester::cost_of(const SendWqe& wqe, uint32_t first, uint32_t count) const {
  uint32_t bytes = 0;
  if (!is_atomic(wqe.op) && count != 0) {
    bytes = (count - 1) * wqe.cut_bytes + packet_bytes(wqe, first + count - 1);
  }
  return bytes + count * PeerPath::kPacketOverhead;
}

Requester::Blocked Requester::blocked_reason(Instant now) {
  if (!started_ || (qp_.state != QpState::Rts && qp_.state != QpState::Sqd)) {
    return Blocked::NothingToSend;
  }
  if (rnr_until_ != kNever && now < rnr_until_) return Blocked::RnrWait;
  if (board_) [[unlikely]] {
    if (board_->anything_lost()) return lost_blocked();
    if (board_full()) return Blocked::Order;
  }
  return new_request_blocked(now);
}

Requester::Blocked Requester::new_request_blocked(Instant now) {
  if (cursor_ == queue_.tail()) return Blocked::NothingToSend;
  const SendWqe& wqe = queue_.at(cursor_);
  if (qp_.state == QpState::Sqd && !wqe.numbered && direct_bytes_ == 0) return Blocked::Drain;
  // Local operations change what keys mean, so they wait until everything before them is done.
  if (is_local(wqe.op) || denied_ == cursor_) {
    return cursor_ == queue_.head() ? Blocked::No : Blocked::Order;
  }
  if ((wqe.flags & kFence) != 0 && cursor_packet_ == 0 && cursor_ != queue_.head()) {
    for (uint64_t i = queue_.head(); i != cursor_; ++i) {
      if (is_read_or_atomic(queue_.at(i).op)) return Blocked::Fence;
    }
  }
  if (is_read_or_atomic(wqe.op) && reads_.size() >= qp_.attr.max_read_atomic) {
    return Blocked::ReadLimit;
  }
  const bool without_peer = qp_.peer->is_unresponsive(now) && may_go_direct(wqe);
  return room_for(wqe) || without_peer ? Blocked::No : Blocked::Window;
}

// A READ is one small packet, but its answer comes all at once: it must not bring more under way
// than a receive buffer of the usual size takes.
bool Requester::room_for(const SendWqe& wqe) const {
  const PeerPath& peer = *qp_.peer;
  if (!peer.has_room() || wqe.op != SendOp::Read || peer.is_in_memory()) return peer.has_room();
  const uint32_t cut = wqe.numbered ? wqe.cut_bytes : qp_.cut_bytes();
  const uint32_t packets = wqe.numbered ? piece_at({cursor_, cursor_packet_}).packets
                                        : std::min(packets_of(wqe), piece_packets(cut));
  const uint32_t cost = std::min(packets * cut, wqe.length) + packets * PeerPath::kPacketOverhead;
  return peer.in_flight() + cost <= PeerPath::kMaxResponseBytes;
}

uint32_t Requester::piece_packets(uint32_t cut_bytes) const {
  return std::max(std::min(qp_.peer->window() / 2, kMaxReadPieceBytes) / cut_bytes, 1u);
}

void Requester::number(SendWqe& wqe) {
  wqe.first_psn = next_;
  wqe.cut_bytes = qp_.cut_bytes();
  wqe.packets = packets_of(wqe);
  // The responder remembers each request of a READ by itself. So that one asked for again never
  // reaches from one into the next, the pieces are fixed once and do not follow the window from
  // then on.
  if (wqe.packets > 1) wqe.piece_packets = piece_packets(wqe.cut_bytes);
  wqe.numbered = true;
}

uint32_t Requester::transmit(wire::PacketSink& sink, Instant now, uint32_t budget) {
  uint32_t sent = 0;
  while (sent < budget && sink.room() > 0 && !qp_.failure) {
    const Blocked blocked = blocked_reason(now);
    if (blocked != Blocked::No) {
      if (blocked == Blocked::Window) qp_.count(CounterId::window_waits);
      break;
    }
    rnr_until_ = kNever;
    if (board_ && board_->anything_lost()) [[unlikely]] {
      if (!send_again(sink, now)) break;
    } else {
      SendWqe& wqe = queue_.at(cursor_);
      if (is_local(wqe.op)) {
        run_local(wqe);
        continue;
      }
      if (may_go_direct(wqe) && had_better_go_direct(sink, now) && go_direct(wqe, sink)) {
        ++sent;
        continue;
      }
      // What was denied takes no room: it fails.
      if (!qp_.peer->has_room() && denied_ != cursor_) break;
      const auto most = static_cast<uint32_t>(std::min<size_t>(budget - sent, sink.room()));
      if (const uint32_t batch = batch_packets(most); batch != 0) {
        send_batch(batch, sink, now);
        sent += batch;
        continue;
      }
      if (!wqe.numbered) number(wqe);
      // Others may have the window before the next turn: what is under way must not wait for that.
      const bool last_of_turn = qp_.peer->users > 1 && (sent + 1 == budget || sink.room() == 1);
      if (!send_new(sink, now, last_of_turn)) break;
    }
    ++sent;
  }
  return sent;
}

void Requester::run_local(SendWqe& wqe) {
  const WcStatus status = execute_local(qp_, wqe);
  if (status != WcStatus::Success) return fail_head(status);
  ++cursor_;
  complete_head(qp_, queue_, WcStatus::Success, 0);
}

// What one packet asks for, from `at` on. A READ goes to the end of the piece that `at` is in; the
// rest of it is another request, with the PSNs that follow. The peer cannot tell that from a
// requester that resumes after a loss.
Requester::Piece Requester::piece_at(Place at) const {
  const SendWqe& wqe = queue_.at(at.index);
  Piece piece{.at = at, .first = wqe.first_psn + at.packet};
  if (wqe.op == SendOp::Read) {
    const uint32_t piece_left = wqe.piece_packets - at.packet % wqe.piece_packets;
    piece.packets = std::min(wqe.packets - at.packet, piece_left);
  }
  return piece;
}

bool Requester::send_new(wire::PacketSink& sink, Instant now, bool ask_for_ack) {
  const Piece piece = piece_at({cursor_, cursor_packet_});
  if (!push_request(piece, sink, ask_for_ack)) return false;
  if (is_read_or_atomic(queue_.at(cursor_).op)) reads_.push_back({piece.first, piece.end() - 1});
  note_sent(piece);
  advance_cursor(piece.packets);
  if (board_) [[unlikely]]
    board_->record_sent(piece.first, piece.end());
  start_clocks(piece.first, now);
  return true;
}

void Requester::note_sent(const Piece& piece) {
  const uint32_t cost = cost_of(queue_.at(piece.at.index), piece.at.packet, piece.packets);
  qp_.peer->on_sent(cost);
  in_flight_cost_ += cost;
}

// Over `packets` of the request that it stands at.
void Requester::advance_cursor(uint32_t packets) {
  next_ = next_ + packets;
  cursor_packet_ += packets;
  if (cursor_packet_ != queue_.at(cursor_).packets) return;
  ++cursor_;
  cursor_packet_ = 0;
}

void Requester::start_clocks(wire::Psn first, Instant now) {
  if (!timed_) {
    timed_ = first;
    timed_at_ = now;
  }
  if (ack_deadline_ == kNever) restart_ack_timer(now);
}

// False, and nothing is sent, if the request's lkeys do not grant what it needs.
bool Requester::push_request(const Piece& piece, wire::PacketSink& sink, bool ask_for_ack,
                             bool early) {
  const SendWqe& wqe = queue_.at(piece.at.index);
  wire::Packet p;
  p.bth.psn = piece.first;
  p.bth.mark = qp_.extensions.request_flag(early);
  p.bth.ack_request = true;
  p.in_window = !piece.repeated;
  p.xrc_srqn = wqe.remote_srqn;
  switch (wqe.op) {
    case SendOp::Read:
      fill_read(wqe, piece, p);
      break;
    case SendOp::CompareSwap:
      p.bth.opcode = qp_.opcode(wire::Opcode::RcCompareSwap);
      p.atomic = {wqe.remote_address, wqe.rkey, wqe.swap, wqe.compare_add};
      break;
    case SendOp::FetchAdd:
      p.bth.opcode = qp_.opcode(wire::Opcode::RcFetchAdd);
      p.atomic = {wqe.remote_address, wqe.rkey, wqe.compare_add, 0};
      break;
    case SendOp::Flush:
      p.bth.opcode = qp_.opcode(wire::Opcode::RcFlush);
      p.flush = {wqe.flush_placement, wqe.flush_selectivity};
      p.reth = {wqe.remote_address, wqe.rkey, wqe.flush_length};
      break;
    default:
      return push_message_packet(piece.at, p, sink, ask_for_ack);
  }
  push_packet(qp_, sink, p, {}, 0);
  return true;
}

void Requester::fill_read(const SendWqe& wqe, const Piece& piece, wire::Packet& p) const {
  const uint32_t offset = piece.at.packet * wqe.cut_bytes;
  const bool to_the_end = piece.at.packet + piece.packets == wqe.packets;
  p.bth.opcode = qp_.opcode(wire::Opcode::RcReadRequest);
  p.reth = {wqe.remote_address + offset, wqe.rkey,
            to_the_end ? wqe.length - offset : piece.packets * wqe.cut_bytes};
  p.cut_bytes = wqe.cut_bytes;
}

// A message of one packet. Packets of a longer one must have equal sizes to share a GSO batch, so
// there the ACK follows them.
bool Requester::can_piggyback(const wire::PacketSink& sink, Instant now) const {
  if (!qp_.extensions.peer_buffers_requests() || board_ || unacked_ != next_ ||
      cursor_ + 1 != queue_.tail())
    return false;
  const SendWqe& wqe = queue_.at(cursor_);
  return is_message(wqe.op) && wqe.length + kPiggybackBytes <= qp_.cut_bytes() &&
         !may_go_unheard(wqe, sink, now);
}

// The headers of one packet of a SEND or WRITE.
void Requester::fill_message(const SendWqe& wqe, uint32_t packet_index, wire::Packet& p) const {
  const bool last = packet_index + 1 == wqe.packets;
  p.bth.opcode = qp_.opcode(message_opcode(wqe.op, packet_index == 0, last));
  // Only a message that takes a receive can raise an event (IBA 9.2.3).
  const bool takes_receive = wqe.op != SendOp::Write && wqe.op != SendOp::AtomicWrite;
  p.bth.solicited = last && takes_receive && (wqe.flags & kSolicited) != 0;
  p.reth = {wqe.remote_address, wqe.rkey, wqe.length};
  p.immediate = wqe.immediate_or_rkey;
  p.invalidate_rkey = wqe.immediate_or_rkey;
  p.cut_bytes = wqe.cut_bytes;
}

// Takes the ACK along that AckScheduler offers, if any.
void Requester::piggyback_ack(uint64_t index, wire::Packet& p) {
  p.piggyback = qp_.acks.take_offer(index);
  if (!p.piggyback) return;
  p.bth.mark = qp_.extensions.piggyback_flag();
  qp_.count(CounterId::acknowledgements_carried);
}

bool Requester::push_message_packet(Place at, wire::Packet& p, wire::PacketSink& sink,
                                    bool ask_for_ack) {
  const SendWqe& wqe = queue_.at(at.index);
  const uint32_t offset = at.packet * wqe.cut_bytes;
  const uint32_t bytes = packet_bytes(wqe, at.packet);
  const bool last = at.packet + 1 == wqe.packets;

  Gather payload;
  if (!gather_message(qp_, queue_, at.index, offset, bytes, payload)) {
    // What was posted before it still completes first.
    denied_ = at.index;
    if (at.index == queue_.head()) fail_head(WcStatus::LocalProtection);
    return false;
  }

  fill_message(wqe, at.packet, p);
  p.last = last && at.index + 1 == queue_.tail() && qp_.engine.alone;
  ++since_ack_request_;
  // Also when the window is about to close: only an acknowledgement opens it again. And where the
  // next packet may be a timeout away.
  const bool crawls = qp_.attr.rate_limit != 0 && qp_.attr.rate_limit < kCrawlKbps;
  p.bth.ack_request = last || ask_for_ack || crawls ||
                      since_ack_request_ >= kPacketsPerAckRequest ||
                      qp_.peer->room() <= cost_of(wqe, at.packet, 1);
  if (p.bth.ack_request) since_ack_request_ = 0;
  piggyback_ack(at.index, p);
  push_packet(qp_, sink, p, payload.view(), bytes);
  return true;
}

}  // namespace verbena::core
