// WRITEs and READs that need nobody at the other end: where the peer's memory can be reached from
// here, and all that was posted before is done, they are done at once. They take no PSN, and the
// peer's responder never hears of them (docs/design/one-sided-access.md).
#include <algorithm>

#include "core/posting.h"
#include "core/requester.h"
#include "wire/local_peer.h"
#include "wire/one_sided.h"

namespace verbena::core {
namespace {

// Each costs a system call, several times what a small packet does. So packets are better for a
// stream, whose first ones wake the peer. A stream is more than this, one posted after the other
// without a pause and without a look at what became of them.
constexpr uint32_t kMostInARow = 16;
constexpr Duration kPause = microseconds(10);

// A peer that has read nothing for so long is stopped, or starved. Longer than the runtime's thread
// naps while there is traffic, so that nobody wakes it for this.
constexpr Duration kStuckAfter = milliseconds(55);
// And so long nothing is left to it that can be done without it, unless it answers.
constexpr Duration kStuckFor = milliseconds(200);

}  // namespace

bool Requester::peer_sleeps(const wire::PacketSink& sink) const {
  const wire::LocalPeer* const local = sink.local_peer();
  return local != nullptr && local->is_asleep(qp_.attr.path);
}

// All that was posted before it is done.
bool Requester::may_go_direct(const SendWqe& wqe) const {
  const bool one_sided = wqe.op == SendOp::Write || wqe.op == SendOp::Read;
  return one_sided && !wqe.numbered && cursor_ == queue_.head() && wqe.length != 0 &&
         qp_.type == QpType::Rc && !board_ && cursor_ != direct_refused_;
}

// It is not certain that the peer will hear anything of it. (Whether it sleeps may change
// meanwhile: what was to be carried is then said by itself.)
bool Requester::may_go_unheard(const SendWqe& wqe, const wire::PacketSink& sink,
                               Instant now) const {
  return may_go_direct(wqe) &&
         (direct_bytes_ != 0 || qp_.peer->is_unresponsive(now) || peer_sleeps(sink));
}

bool Requester::had_better_go_direct(const wire::PacketSink& sink, Instant now) {
  if (direct_bytes_ != 0 || qp_.peer->is_unresponsive(now)) return true;
  if (queue_.size() != 1 || !peer_sleeps(sink)) return false;
  const uint64_t taken = qp_.send_cq->taken();
  if (taken != direct_seen_taken_ || now - direct_at_ > kPause) direct_in_a_row_ = 0;
  direct_seen_taken_ = taken;
  direct_at_ = now;
  return ++direct_in_a_row_ <= kMostInARow;
}

// A packet's worth of it: more is not made reachable at once. False: the peer is to be asked, for
// all of it.
bool Requester::go_direct(const SendWqe& wqe, wire::PacketSink& sink) {
  const bool write = wqe.op == SendOp::Write;
  const uint32_t offset = direct_bytes_;
  const uint32_t bytes = std::min(wqe.length - offset, wire::kMaxPayloadBytes);
  Gather local;
  const bool granted = write ? gather_message(qp_, queue_, cursor_, offset, bytes, local)
                             : gather(qp_.engine.memory, qp_.pd, queue_.sges(cursor_), offset,
                                      bytes, local, kLocalWrite);
  direct_bytes_ = 0;
  direct_refused_ = cursor_;
  if (!granted) return false;
  wire::LocalPeer* const local_peer = sink.local_peer();
  if (local_peer == nullptr) return false;
  if (!local_peer->access({.path = qp_.attr.path,
                           .source = qp_.qpn,
                           .destination = qp_.attr.dest_qpn,
                           .write = write,
                           .ends_message = offset + bytes == wqe.length,
                           .access = write ? kRemoteWrite : kRemoteRead,
                           .rkey = wqe.rkey,
                           .remote_address = wqe.remote_address,
                           .length = wqe.length,
                           .offset = offset,
                           .bytes = bytes,
                           .local = local.view()})) {
    return false;
  }
  direct_refused_ = UINT64_MAX;
  if (offset + bytes != wqe.length) {
    direct_bytes_ = offset + bytes;
    return true;
  }
  qp_.count(write ? CounterId::writes_without_peer : CounterId::reads_without_peer);
  stop_ack_timer();
  tries_ = 0;
  renew_retries();
  taken_back_ = timed_hold_ = false;
  ++cursor_;
  complete_head(qp_, queue_, WcStatus::Success, write ? 0 : wqe.length);
  return true;
}

void Requester::go_without_peer(wire::PacketSink& sink, Instant now) {
  if (probe_due_ && qp_.peer->is_in_memory() && !board_ && unacked_ != next_) retract(sink, now);
  while (sink.room() > 0 && !qp_.failure && blocked_reason(now) == Blocked::No) {
    if (cursor_ == queue_.tail()) return;
    const SendWqe& wqe = queue_.at(cursor_);
    if (!may_go_direct(wqe) || !had_better_go_direct(sink, now)) return;
    if (!go_direct(wqe, sink)) return;
  }
}

// Before the ack timeout in any case: what was sent twice is not taken back.
Instant Requester::stuck_time(Instant now) const {
  if (taken_back_ || board_) return kNever;
  if (qp_.attr.timeout == 0) return now + kStuckAfter;
  return now + std::min(kStuckAfter, ack_timeout(qp_.attr.timeout) * 3 / 4);
}

// What is under way to a peer that reads nothing is as if it had never left, provided that none of
// it was read, and that no message was read in part. It is numbered anew: what comes first of it
// may be done without the peer, and then takes no PSN. Once for each request, so that timeouts are
// not put off for ever.
void Requester::retract(wire::PacketSink& sink, Instant now) {
  qp_.urgent = probe_due_ = false;
  qp_.peer->unresponsive_until = now + kStuckFor;
  const SendWqe& head = queue_.front();
  const bool one_sided = head.op == SendOp::Write || head.op == SendOp::Read;
  if (!one_sided || head.first_psn != unacked_ || qp_.type != QpType::Rc) return;
  wire::LocalPeer* const local_peer = sink.local_peer();
  wire::Unread unread{.path = qp_.attr.path, .destination = qp_.attr.dest_qpn, .first = unacked_};
  for (Place at{queue_.head(), 0}; at.index != cursor_ || at.packet != cursor_packet_;) {
    at.packet += piece_at(at).packets;
    if (at.packet == queue_.at(at.index).packets) at = {at.index + 1, 0};
    ++unread.packets;
  }
  if (local_peer == nullptr || !local_peer->retract(unread)) return;
  qp_.acks.on_retracted(queue_.head(), queue_.tail());
  for (uint64_t i = queue_.head(); i != queue_.tail() && queue_.at(i).numbered; ++i) {
    queue_.at(i).numbered = false;
    qp_.count(CounterId::requests_taken_back);
  }
  qp_.peer->release(in_flight_cost_);
  in_flight_cost_ = 0;
  reads_.clear();
  timed_.reset();
  since_ack_request_ = 0;
  stop_ack_timer();
  next_ = unacked_;
  cursor_ = queue_.head();
  cursor_packet_ = 0;
  taken_back_ = true;
}

}  // namespace verbena::core
