// When and how the requester uses one-sided access.
#include "core/direct_access.h"

#include <algorithm>
#include <utility>

#include "core/placement.h"
#include "core/posting.h"
#include "wire/local_peer.h"
#include "wire/one_sided.h"

namespace verbena::core {

bool DirectAccess::is_asleep(const wire::PacketSink& sink) const {
  const wire::LocalPeer* const local = sink.local_peer();
  return local != nullptr && local->is_asleep(qp_.attr.path);
}

bool DirectAccess::is_preferred(const wire::PacketSink& sink, Instant now) {
  if (is_begun() || qp_.peer->is_unresponsive(now)) return true;
  if (cursor_.queue().size() != 1 || !is_asleep(sink)) return false;
  const uint64_t completions = qp_.config.send_cq->taken();
  if (completions != completions_ || now - last_at_ > kPause) in_a_row_ = 0;
  completions_ = completions;
  last_at_ = now;
  return ++in_a_row_ <= kMaxInARow;
}

DirectAccess::Outcome DirectAccess::access(wire::PacketSink& sink) {
  const SendWqe& wqe = cursor_.request();
  const bool is_write = wqe.op == SendOp::Write;
  const uint32_t offset = bytes_done_;
  const uint32_t bytes = std::min(wqe.length - offset, wire::kMaxPayloadBytes);
  const bool is_last = offset + bytes == wqe.length;
  Gather local;
  const bool granted = gather_local(bytes, local);
  wire::LocalPeer* const peer = sink.local_peer();
  bytes_done_ = 0;
  refused_ = cursor_.index();
  if (!granted || peer == nullptr) return Outcome::Refused;
  if (!peer->access({.path = qp_.attr.path,
                     .source = qp_.qpn,
                     .destination = qp_.attr.dest_qpn,
                     .write = is_write,
                     .ends_message = is_last,
                     .access = is_write ? kRemoteWrite : kRemoteRead,
                     .rkey = wqe.rkey,
                     .remote_address = wqe.remote_address,
                     .length = wqe.length,
                     .offset = offset,
                     .bytes = bytes,
                     .local = local.view()})) {
    return Outcome::Refused;
  }
  refused_ = kNone;
  if (!is_last) {
    bytes_done_ = offset + bytes;
    return Outcome::Partial;
  }
  qp_.count(is_write ? CounterId::one_sided_writes : CounterId::one_sided_reads);
  return Outcome::Done;
}

bool DirectAccess::gather_local(uint32_t bytes, Gather& local) {
  const uint64_t index = cursor_.index();
  if (cursor_.queue().at(index).op == SendOp::Write) {
    return gather_message(qp_, cursor_.queue(), index, bytes_done_, bytes, local);
  }
  return gather(qp_.engine.memory, qp_.pd, cursor_.queue().sges(index), bytes_done_, bytes, local,
                kLocalWrite);
}

bool DirectAccess::retract(wire::PacketSink& sink, Instant now) {
  qp_.peer->unresponsive_until = now + kUnresponsiveFor;
  const SendWqe& head = cursor_.queue().front();
  const bool one_sided = head.op == SendOp::Write || head.op == SendOp::Read;
  wire::LocalPeer* const peer = sink.local_peer();
  // A message that the peer has read in part stays.
  if (!one_sided || head.first_psn != cursor_.unacked() || qp_.config.type != QpType::Rc ||
      peer == nullptr) {
    return false;
  }
  wire::Unread unread{
      .path = qp_.attr.path, .destination = qp_.attr.dest_qpn, .first = cursor_.unacked()};
  cursor_.for_each_chunk(cursor_.unacked(), cursor_.next(),
                         [&](const SendWqe&, const SendCursor::Chunk&) { ++unread.packets; });
  return peer->retract(unread);
}

}  // namespace verbena::core
