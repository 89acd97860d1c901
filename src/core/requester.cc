// The requester's sending half: posting, the order in which things may leave, building packets.
#include "core/requester.h"

#include <algorithm>

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
    : qp_(qp), queue_(max_wr, max_sges, max_inline) {}

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

void Requester::start() {
  next_ = unacked_ = highest_ = wire::Psn(qp_.attr.sq_psn);
  cursor_ = queue_.head();
  cursor_packet_ = 0;
  started_ = true;
  reads_.reserve(qp_.attr.max_read_atomic);
  retries_left_ = qp_.attr.retry_count;
  rnr_retries_left_ = qp_.attr.rnr_retry;
}

void Requester::change_window(PeerWindow* window) {
  if (qp_.window != nullptr) qp_.window->release(in_flight_cost_);
  if (window != nullptr) window->sent(in_flight_cost_);
  qp_.window = window;
}

void Requester::reset() {
  if (qp_.window != nullptr) qp_.window->release(in_flight_cost_);
  in_flight_cost_ = 0;
  queue_.clear();
  cursor_ = queue_.head();
  cursor_packet_ = 0;
  started_ = false;
  reads_.clear();
  implied_at_.reset();
  denied_.reset();
  since_ack_request_ = 0;
  tries_ = 0;
  ack_deadline_ = rnr_until_ = kNever;
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

uint32_t Requester::cost_of(const SendWqe& wqe, uint32_t first, uint32_t count) const {
  uint32_t bytes = 0;
  if (!is_atomic(wqe.op) && count != 0) {
    bytes = (count - 1) * wqe.cut_bytes + packet_bytes(wqe, first + count - 1);
  }
  return bytes + count * PeerWindow::kPacketOverhead;
}

Requester::Blocked Requester::blocked_reason(Instant now) {
  if (!started_ || cursor_ == queue_.tail()) return Blocked::NothingToSend;
  if (qp_.state != QpState::Rts && qp_.state != QpState::Sqd) return Blocked::NothingToSend;
  if (rnr_until_ != kNever && now < rnr_until_) return Blocked::RnrWait;
  const SendWqe& wqe = queue_.at(cursor_);
  if (qp_.state == QpState::Sqd && !wqe.numbered) return Blocked::Drain;
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
  if (!qp_.window->open()) return Blocked::Window;
  return Blocked::No;
}

void Requester::number(SendWqe& wqe) {
  wqe.first_psn = next_;
  wqe.cut_bytes = qp_.cut_bytes();
  const bool one = wqe.length <= wqe.cut_bytes || is_atomic(wqe.op);
  wqe.packets = one ? 1 : (wqe.length - 1) / wqe.cut_bytes + 1;
  // The responder remembers each request of a READ by itself. So that one asked for again never
  // reaches from one into the next, the pieces are fixed once and do not follow the window from
  // then on.
  if (!one) {
    const uint32_t piece = std::min(qp_.window->limit() / 2, kMaxReadPieceBytes);
    wqe.piece_packets = std::max(piece / wqe.cut_bytes, 1u);
  }
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
    SendWqe& wqe = queue_.at(cursor_);
    if (is_local(wqe.op)) {
      run_local(wqe);
      continue;
    }
    if (!wqe.numbered) number(wqe);
    if (!send_request_packet(wqe, sink, now)) break;
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

bool Requester::send_request_packet(SendWqe& wqe, wire::PacketSink& sink, Instant now) {
  if (next_.distance_from(highest_) < 0) qp_.count(CounterId::retransmitted_packets);
  if (wqe.op == SendOp::Read) {
    send_read(wqe, sink);
  } else if (is_atomic(wqe.op)) {
    send_atomic(wqe, sink);
  } else if (wqe.op == SendOp::Flush) {
    send_flush(wqe, sink);
  } else if (!send_message_packet(wqe, sink)) {
    return false;
  }
  if (ack_deadline_ == kNever) restart_ack_timer(now);
  return true;
}

void Requester::advance_cursor(SendWqe& wqe, uint32_t packets, uint32_t cost) {
  qp_.window->sent(cost);
  in_flight_cost_ += cost;
  next_ = next_ + packets;
  if (next_.distance_from(highest_) > 0) highest_ = next_;
  cursor_packet_ += packets;
  if (cursor_packet_ == wqe.packets) {
    ++cursor_;
    cursor_packet_ = 0;
  }
}

void Requester::send_read(SendWqe& wqe, wire::PacketSink& sink) {
  const uint32_t offset = cursor_packet_ * wqe.cut_bytes;
  // To the end of the piece the cursor is in; the rest is another request, with the PSNs that
  // follow. The peer cannot tell that from a requester that resumes after a loss.
  const uint32_t piece_left = wqe.piece_packets - cursor_packet_ % wqe.piece_packets;
  const uint32_t packets = std::min(wqe.packets - cursor_packet_, piece_left);
  const bool to_the_end = cursor_packet_ + packets == wqe.packets;

  wire::Packet p;
  p.bth.opcode = qp_.opcode(wire::Opcode::RcReadRequest);
  p.bth.psn = next_;
  p.xrc_srqn = wqe.remote_srqn;
  p.bth.ack_request = true;
  p.reth = {wqe.remote_address + offset, wqe.rkey,
            to_the_end ? wqe.length - offset : packets * wqe.cut_bytes};
  p.cut_bytes = wqe.cut_bytes;
  push_packet(qp_, sink, p, {}, 0);
  reads_.push_back({next_, next_ + (packets - 1)});
  advance_cursor(wqe, packets, cost_of(wqe, cursor_packet_, packets));
}

void Requester::send_atomic(SendWqe& wqe, wire::PacketSink& sink) {
  wire::Packet p;
  const bool swap = wqe.op == SendOp::CompareSwap;
  p.bth.opcode = qp_.opcode(swap ? wire::Opcode::RcCompareSwap : wire::Opcode::RcFetchAdd);
  p.bth.psn = next_;
  p.xrc_srqn = wqe.remote_srqn;
  p.bth.ack_request = true;
  p.atomic = {wqe.remote_address, wqe.rkey, swap ? wqe.swap : wqe.compare_add,
              swap ? wqe.compare_add : 0};
  push_packet(qp_, sink, p, {}, 0);
  reads_.push_back({next_, next_});
  advance_cursor(wqe, 1, cost_of(wqe, 0, 1));
}

void Requester::send_flush(SendWqe& wqe, wire::PacketSink& sink) {
  wire::Packet p;
  p.bth.opcode = qp_.opcode(wire::Opcode::RcFlush);
  p.bth.psn = next_;
  p.xrc_srqn = wqe.remote_srqn;
  p.bth.ack_request = true;
  p.flush = {wqe.flush_placement, wqe.flush_selectivity};
  p.reth = {wqe.remote_address, wqe.rkey, wqe.flush_length};
  push_packet(qp_, sink, p, {}, 0);
  reads_.push_back({next_, next_});
  advance_cursor(wqe, 1, cost_of(wqe, 0, 1));
}

bool Requester::send_message_packet(SendWqe& wqe, wire::PacketSink& sink) {
  const uint32_t offset = cursor_packet_ * wqe.cut_bytes;
  const uint32_t bytes = packet_bytes(wqe, cursor_packet_);
  const bool first = cursor_packet_ == 0;
  const bool last = cursor_packet_ + 1 == wqe.packets;

  Gather payload;
  if (!gather_message(qp_, queue_, cursor_, offset, bytes, payload)) {
    // What was posted before it still completes first.
    denied_ = cursor_;
    if (cursor_ == queue_.head()) fail_head(WcStatus::LocalProtection);
    return false;
  }

  wire::Packet p;
  p.bth.opcode = qp_.opcode(message_opcode(wqe.op, first, last));
  p.bth.psn = next_;
  p.xrc_srqn = wqe.remote_srqn;
  // Only where the message takes a receive is there anybody to wake (IBA 9.2.3).
  const bool takes_receive = wqe.op != SendOp::Write && wqe.op != SendOp::AtomicWrite;
  p.bth.solicited = last && takes_receive && (wqe.flags & kSolicited) != 0;
  p.reth = {wqe.remote_address, wqe.rkey, wqe.length};
  p.immediate = wqe.immediate_or_rkey;
  p.invalidate_rkey = wqe.immediate_or_rkey;
  p.cut_bytes = wqe.cut_bytes;
  const uint32_t cost = cost_of(wqe, cursor_packet_, 1);
  ++since_ack_request_;
  // Also when the window is about to close: only an acknowledgement opens it again. And where the
  // next packet may be a timeout away.
  const bool crawls = qp_.attr.rate_limit != 0 && qp_.attr.rate_limit < kCrawlKbps;
  p.bth.ack_request =
      last || crawls || since_ack_request_ >= kPacketsPerAckRequest || qp_.window->room() <= cost;
  if (p.bth.ack_request) since_ack_request_ = 0;
  push_packet(qp_, sink, p, payload.view(), bytes);
  if (wqe.op == SendOp::AtomicWrite) reads_.push_back({next_, next_});
  advance_cursor(wqe, 1, cost);
  return true;
}

}  // namespace verbena::core
