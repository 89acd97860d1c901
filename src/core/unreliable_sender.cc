// Posting, pacing and sending for UC and UD.
#include "core/unreliable_sender.h"

#include <algorithm>
#include <new>

#include "core/posting.h"

namespace verbena::core {
namespace {

uint32_t packets_for(uint32_t length, uint32_t limit) {
  return length == 0 ? 1 : (length - 1) / limit + 1;
}

bool is_send(SendOp op) { return op == SendOp::Send || op == SendOp::SendImm; }
bool is_write(SendOp op) { return op == SendOp::Write || op == SendOp::WriteImm; }

}  // namespace

UnreliableSender::UnreliableSender(QpCommon& qp, uint32_t max_wr, uint32_t max_sges,
                                   uint32_t max_inline)
    : qp_(qp), queue_(max_wr, max_sges, max_inline) {}

Status UnreliableSender::post(const SendRequest& r) {
  auto length = check_request(queue_, r);
  if (!length.ok()) return length.error();
  Status admitted = admit(r, length.value());
  if (!admitted.ok()) return admitted;
  address(r, fill_slot(queue_, r, length.value()));
  queue_.push();
  return {};
}

void UnreliableSender::unpost(uint32_t count) {
  VERBENA_CHECK(count <= queue_.size());
  for (uint64_t i = queue_.tail() - count; i != queue_.tail(); ++i) on_removed(queue_.at(i));
  queue_.unpost(count);
}

void UnreliableSender::start() {
  next_ = wire::Psn(qp_.attr.sq_psn);
  next_packet_ = 0;
  started_ = true;
}

void UnreliableSender::reset() {
  unpost(static_cast<uint32_t>(queue_.size()));
  cnp_limit_.reset();
  next_packet_ = 0;
  started_ = false;
  cancel_reservation();
}

void UnreliableSender::flush(WcStatus first) {
  next_packet_ = 0;
  cancel_reservation();
  WcStatus status = first;
  while (!queue_.empty()) {
    finish_head(status);
    status = WcStatus::Flushed;
  }
}

void UnreliableSender::cancel_reservation() {
  qp_.engine.pace.cancel(reserved_);
  reserved_ = 0;
  waits_ = false;
}

bool UnreliableSender::may_send() const {
  if (!started_ || queue_.empty()) return false;
  // While draining, a message that has begun is finished.
  return qp_.state == QpState::Rts || (qp_.state == QpState::Sqd && next_packet_ != 0);
}

bool UnreliableSender::ready(Instant now) {
  waits_ = false;
  if (!may_send()) return false;
  if (reserved_ == 0) reserve(now);
  waits_ = now < not_before_;
  return !waits_;
}

// Reserves for the queued packets, up to a quantum.
void UnreliableSender::reserve(Instant now) {
  const uint32_t limit = packet_limit();
  uint32_t packet = next_packet_;
  for (uint64_t i = queue_.head(); i != queue_.tail(); ++i, packet = 0) {
    const SendWqe& wqe = queue_.at(i);
    for (const uint32_t end = packets_for(wqe.length, limit); packet < end; ++packet) {
      reserved_ += std::min(limit, wqe.length - packet * limit) + UnackedPace::kPacketOverhead;
      if (reserved_ >= UnackedPace::kQuantumBytes) break;
    }
    if (reserved_ >= UnackedPace::kQuantumBytes) break;
  }
  not_before_ = qp_.engine.pace.reserve(now, reserved_);
  if (cnp_limit_ != nullptr) [[unlikely]]
    reserve_at_cnp_rate(now);
}

void UnreliableSender::reserve_at_cnp_rate(Instant now) {
  CnpLimit& limit = *cnp_limit_;
  limit.rate.advance(UnackedPace::kBytesPerSecond, now);
  if (!limit.rate.is_limited()) return cnp_limit_.reset();
  const Instant begin = std::max(limit.free_at, now);
  const uint64_t ns = uint64_t{reserved_} * 1'000'000'000 / limit.rate.rate();
  limit.free_at = begin + nanoseconds(static_cast<int64_t>(ns));
  not_before_ = std::max(not_before_, begin);
}

// What is reserved already leaves at the rate before.
void UnreliableSender::on_cnp(Instant now) {
  if (cnp_limit_ == nullptr) cnp_limit_.reset(new (std::nothrow) CnpLimit);
  if (cnp_limit_ == nullptr) return;  // as if the CNP had been lost
  cnp_limit_->rate.on_cnp(UnackedPace::kBytesPerSecond, now);
}

uint32_t UnreliableSender::transmit(wire::PacketSink& sink, Instant now, const TransmitTurn& turn) {
  uint32_t sent = 0;
  while (sent < turn.budget && sink.room() > 0 && !qp_.failure && ready(now)) {
    if (const SendWqe& wqe = queue_.front(); is_local(wqe.op)) {
      const WcStatus status = execute_local(qp_, wqe);
      if (status != WcStatus::Success) {
        fail_head(status);
      } else {
        finish_head(status);
      }
      continue;
    }
    send_packet(sink);
    ++sent;
  }
  return sent;
}

void UnreliableSender::send_packet(wire::PacketSink& sink) {
  SendWqe& wqe = queue_.front();
  if (next_packet_ == 0) wqe.packet_payload_bytes = packet_limit();
  const uint32_t offset = next_packet_ * wqe.packet_payload_bytes;
  const uint32_t bytes = std::min(wqe.packet_payload_bytes, wqe.length - offset);
  const bool last = offset + bytes == wqe.length;
  Gather payload;
  if (!gather_message(qp_, queue_, queue_.head(), offset, bytes, payload)) {
    return fail_head(WcStatus::LocalProtection);
  }
  wire::Packet p;
  const wire::PathId path = fill(wqe, next_packet_ == 0, last, p);
  p.bth.psn = next_;
  // Only a message that consumes a receive can raise an event (IBA 9.2.3).
  p.bth.solicited = last && wqe.op != SendOp::Write && (wqe.flags & kSolicited) != 0;
  p.immediate = wqe.immediate_or_rkey;
  p.packet_payload_bytes = wqe.packet_payload_bytes;
  push_packet(qp_, sink, path, p, payload.view(), bytes);
  next_ = next_ + 1;
  reserved_ -= std::min(reserved_, bytes + UnackedPace::kPacketOverhead);
  ++next_packet_;
  if (!last) return;
  next_packet_ = 0;
  finish_head(WcStatus::Success);
}

void UnreliableSender::finish_head(WcStatus status) {
  on_removed(queue_.front());
  complete_head(qp_, queue_, status, 0);
}

void UnreliableSender::fail_head(WcStatus status) {
  const SendWqe& wqe = queue_.front();
  QpFailure& f = qp_.fail(status);
  f.op = wqe.op;
  f.wr_id = wqe.wr_id;
  f.length = wqe.length;
  f.remote_address = wqe.remote_address;
  f.rkey = wqe.rkey;
  f.psn = next_.value();
}

Status UcSender::admit(const SendRequest& r, uint32_t) const {
  if (is_send(r.op) || is_write(r.op) || is_local(r.op)) return {};
  return Error{EINVAL, "a UC queue pair has SEND and WRITE, with or without immediate, only"};
}

wire::PathId UcSender::fill(const SendWqe& wqe, bool first, bool last, wire::Packet& p) const {
  p.bth.opcode = qp_.opcode(message_opcode(wqe.op, first, last));
  p.bth.destination = qp_.attr.dest_qpn;
  p.reth = {wqe.remote_address, wqe.rkey, wqe.length};
  return qp_.attr.path;
}

Status UdSender::admit(const SendRequest& r, uint32_t length) const {
  if (!is_send(r.op)) {
    return Error{EINVAL, "a UD queue pair has SEND, with or without immediate, only"};
  }
  if (r.datagram.handle == nullptr)
    return Error{EINVAL, "a datagram needs an address handle (wr.ud.ah)"};
  if (r.datagram.handle->pd != qp_.pd) {
    return Error{EINVAL, "the address handle belongs to another protection domain than the QP"};
  }
  if (length > wire::bytes_of(r.datagram.handle->mtu)) {
    return Error{EINVAL, "a datagram is at most as long as the port's active MTU"};
  }
  if (r.datagram.handle->address.destination.is_multicast() &&
      r.datagram.qpn != wire::kMulticastQpn) {
    return Error{EINVAL, "to a multicast group, remote_qpn must be 0xFFFFFF"};
  }
  return {};
}

// Copies the address and references the path: the handle may be destroyed before the request is
// sent.
void UdSender::address(const SendRequest& r, SendWqe& wqe) const {
  wqe.datagram.path = r.datagram.handle->path;
  qp_.engine.paths.add(wqe.datagram.path);
  wqe.datagram.qpn = r.datagram.qpn;
  wqe.datagram.qkey = r.datagram.qkey;
}

void UdSender::on_removed(const SendWqe& wqe) const { qp_.engine.paths.release(wqe.datagram.path); }

wire::PathId UdSender::fill(const SendWqe& wqe, bool, bool, wire::Packet& p) const {
  // A Q_Key with the high bit set means the queue pair's own (IBA 10.2.5), so that a program cannot
  // use a privileged one.
  constexpr uint32_t kOwnQkey = 0x80000000;
  p.bth.opcode = qp_.opcode(message_opcode(wqe.op, true, true));
  p.bth.destination = wqe.datagram.qpn;
  p.deth.qkey = (wqe.datagram.qkey & kOwnQkey) != 0 ? qp_.attr.qkey : wqe.datagram.qkey;
  p.deth.source = qp_.qpn;
  return wqe.datagram.path;
}

}  // namespace verbena::core
