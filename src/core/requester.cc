// The requester's sending half: posting, choosing the next packet, building packets.
#include "core/requester.h"

#include <algorithm>
#include <utility>

#include "core/posting.h"

namespace verbena::core {
namespace {

Status check_flush(const SendRequest& r) {
  if (r.flush.placement == 0 || (r.flush.placement & ~wire::kPlaceAny) != 0) {
    return Error{EINVAL, "a flush is global, persistent or both"};
  }
  if (r.flush.selectivity > wire::kSelectRegion) {
    return Error{EINVAL, "a flush is of a range or of a memory region"};
  }
  return {};
}

}  // namespace

Requester::Requester(QpCommon& qp, uint32_t max_wr, uint32_t max_sges, uint32_t max_inline)
    : qp_(qp),
      cursor_(max_wr, max_sges, max_inline),
      recovery_(qp, cursor_),
      direct_(qp, cursor_),
      batches_(qp, cursor_),
      responses_(qp.engine.packet_pool) {}

Status Requester::post(const SendRequest& r) {
  auto checked = check_request(queue(), r);
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
  fill_slot(queue(), r, length);
  queue().push();
  return {};
}

void Requester::start() {
  cursor_.start(wire::Psn(qp_.attr.sq_psn));
  recovery_.start();
}

void Requester::reset() {
  clear_outstanding();
  queue().clear();
  cursor_.reset();
  batches_.reset();
  denied_.reset();
  ack_requests_.restart();
}

bool Requester::has_reads_queued() const {
  for (uint64_t i = queue().head(); i != queue().tail(); ++i) {
    if (is_read_or_atomic(queue().at(i).op)) return true;
  }
  return false;
}

// --- which request may leave ---------------------------------------------------------------------

Requester::Blocked Requester::blocked_reason(Instant now) const {
  if (!cursor_.is_started() || (qp_.state != QpState::Rts && qp_.state != QpState::Sqd)) {
    return Blocked::NothingToSend;
  }
  if (recovery_.is_stranded()) [[unlikely]]
    return Blocked::Order;
  if (recovery_.is_waiting_for_receiver(now)) return Blocked::RnrWait;
  if (recovery_.is_active()) [[unlikely]] {
    if (recovery_.has_lost()) return retransmit_blocked();
    if (recovery_.is_full()) return Blocked::Order;
  }
  return cursor_.is_at_end() ? Blocked::NothingToSend : new_request_blocked(now);
}

Requester::Blocked Requester::retransmit_blocked() const {
  const uint64_t index = cursor_.place_of(recovery_.first_lost()).index;
  if (denied_ == index) return index == queue().head() ? Blocked::No : Blocked::Order;
  return qp_.peer->has_room() ? Blocked::No : Blocked::Window;
}

Requester::Blocked Requester::new_request_blocked(Instant now) const {
  const SendWqe& wqe = cursor_.request();
  if (qp_.state == QpState::Sqd && !wqe.numbered && !direct_.is_begun()) return Blocked::Drain;
  // Local operations change keys, so they wait until all requests before them are complete.
  if (is_local(wqe.op) || denied_ == cursor_.index()) {
    return cursor_.is_at_head() ? Blocked::No : Blocked::Order;
  }
  if ((wqe.flags & kFence) != 0 && !cursor_.is_inside_request() && !cursor_.is_at_head()) {
    for (uint64_t i = queue().head(); i != cursor_.index(); ++i) {
      if (is_read_or_atomic(queue().at(i).op)) return Blocked::Fence;
    }
  }
  if (is_read_or_atomic(wqe.op) && reads_.size() >= qp_.attr.max_read_atomic) {
    return Blocked::ReadLimit;
  }
  if (has_room_for(wqe)) return Blocked::No;
  const bool needs_no_room = qp_.peer->is_unresponsive(now) && can_access();
  return needs_no_room ? Blocked::No : Blocked::Window;
}

// A READ is one small packet, but its responses fill this side's receive buffer.
bool Requester::has_room_for(const SendWqe& wqe) const {
  const PeerPath& peer = *qp_.peer;
  if (!peer.has_room() || wqe.op != SendOp::Read || peer.is_in_memory()) return peer.has_room();
  const uint32_t payload_bytes =
      wqe.numbered ? wqe.packet_payload_bytes : qp_.packet_payload_bytes();
  const uint32_t packets = wqe.numbered
                               ? cursor_.next_chunk().packets
                               : std::min(SendCursor::packets_of(wqe, payload_bytes),
                                          SendCursor::chunk_packets(payload_bytes, peer.window()));
  const uint32_t cost =
      std::min(packets * payload_bytes, wqe.length) + packets * PeerPath::kPacketOverhead;
  return peer.in_flight() + cost <= std::max(PeerPath::kMaxResponseBytes, peer.window());
}

Requester::Step Requester::next_step(const wire::PacketSink& sink, Instant now) {
  if (recovery_.has_lost()) [[unlikely]]
    return Step::Retransmit;
  if (is_local(cursor_.request().op)) return Step::Local;
  if (can_access() && direct_.is_preferred(sink, now)) return Step::OneSided;
  // A denied request needs no window: it fails.
  return qp_.peer->has_room() || denied_ == cursor_.index() ? Step::Send : Step::Wait;
}

uint32_t Requester::transmit(wire::PacketSink& sink, Instant now, const TransmitTurn& turn) {
  uint32_t sent = 0;
  while (sent < turn.budget && sink.room() > 0 && !qp_.failure) {
    const Blocked blocked = blocked_reason(now);
    if (blocked == Blocked::Window) qp_.count(CounterId::window_waits);
    if (blocked != Blocked::No) break;
    recovery_.end_wait_for_receiver();
    switch (next_step(sink, now)) {
      case Step::Retransmit:
        if (!retransmit_first_lost(sink, now)) return sent;
        ++sent;
        break;
      case Step::Local:
        run_local(cursor_.request());
        break;
      case Step::OneSided:
        if (access_directly(sink)) ++sent;  // otherwise the next step sends it
        break;
      case Step::Send: {
        const uint32_t packets = send_new(
            sink, now, {.budget = turn.budget - sent, .only_active_qp = turn.only_active_qp});
        if (packets == 0) return sent;
        sent += packets;
        break;
      }
      case Step::Wait:
        return sent;
    }
  }
  return sent;
}

// Sends one packet even if the window is full: the first lost packet, for which those in the window
// wait, or a tail-loss probe.
uint32_t Requester::send_unwindowed(wire::PacketSink& sink, Instant now) {
  if (sink.room() == 0) return 0;
  qp_.has_unwindowed_packet = false;
  const bool waits = recovery_.is_waiting_for_receiver(now);
  if (!cursor_.is_started() || waits || !cursor_.has_outstanding() || qp_.failure) return 0;
  if (recovery_.is_stranded()) return 0;
  if (recovery_.is_probe_due() && qp_.peer->is_in_memory() && !recovery_.is_active()) {
    retract(sink, now);
    return 0;
  }
  qp_.has_unwindowed_packet = true;  // stays set if the next call throws
  begin_recovery();
  qp_.has_unwindowed_packet = false;
  if (recovery_.is_lost(cursor_.unacked())) return retransmit_first_lost(sink, now) ? 1 : 0;
  if (!recovery_.is_probe_due()) return 0;
  recovery_.cancel_probe();
  const auto psn = recovery_.choose_probe();
  if (!psn || !retransmit(*psn, sink, true, now)) return 0;
  qp_.count(CounterId::probes_sent);
  recovery_.on_probe_sent(now);
  return 1;
}

// --- requests without packets --------------------------------------------------------------------

void Requester::run_local(SendWqe& wqe) {
  const WcStatus status = execute_local(qp_, wqe);
  if (status != WcStatus::Success) return fail_head(status);
  cursor_.skip_request();
  complete_head(qp_, queue(), WcStatus::Success, 0);
}

bool Requester::access_directly(wire::PacketSink& sink) {
  switch (direct_.access(sink)) {
    case DirectAccess::Outcome::Refused:
      return false;
    case DirectAccess::Outcome::Partial:
      return true;
    case DirectAccess::Outcome::Done:
      break;
  }
  const SendWqe& wqe = cursor_.request();
  recovery_.on_head_accessed();
  cursor_.skip_request();
  complete_head(qp_, queue(), WcStatus::Success, wqe.op == SendOp::Write ? 0 : wqe.length);
  return true;
}

// The path is full; one-sided access does not need it.
void Requester::try_one_sided(wire::PacketSink& sink, Instant now) {
  const bool may_retract = recovery_.is_probe_due() && qp_.peer->is_in_memory();
  if (may_retract && !recovery_.is_active() && cursor_.has_outstanding()) retract(sink, now);
  while (sink.room() > 0 && !qp_.failure && blocked_reason(now) == Blocked::No) {
    if (cursor_.is_at_end() || !can_access() || !direct_.is_preferred(sink, now)) return;
    if (!access_directly(sink)) return;
  }
}

// Requests that the peer has not read are as if they had never left. They get new PSNs, because the
// first ones may be done by one-sided access, which uses no PSN.
void Requester::retract(wire::PacketSink& sink, Instant now) {
  qp_.has_unwindowed_packet = false;
  recovery_.cancel_probe();
  if (!direct_.retract(sink, now)) return;
  qp_.acks.on_retracted(queue().head(), queue().tail());
  qp_.count(CounterId::requests_retracted, cursor_.rewind());
  recovery_.on_retracted();
  reads_.clear();
  ack_requests_.restart();
}

void Requester::on_backoff(Instant now) {
  if (!recovery_.needs_backoff_timer()) return;
  if (qp_.has_unwindowed_packet || blocked_reason(now) == Blocked::No)
    recovery_.start_backoff_timer(now);
}

// A message that was split into larger packets can neither leave nor be split again, because its
// PSNs are fixed.
void Requester::on_path_reverted_to_mtu(Instant now) {
  const uint32_t mtu = wire::bytes_of(qp_.attr.path_mtu);
  for (uint64_t i = queue().head(); i != queue().tail() && queue().at(i).numbered; ++i) {
    const SendWqe& wqe = queue().at(i);
    const bool exceeds_mtu =
        wqe.packet_payload_bytes > mtu && wqe.length > mtu && !is_atomic(wqe.op);
    if (!exceeds_mtu) continue;
    qp_.has_unwindowed_packet = false;
    recovery_.cancel_probe();
    return recovery_.strand(now);
  }
}

// --- sending packets -----------------------------------------------------------------------------

bool Requester::retransmit_first_lost(wire::PacketSink& sink, Instant now) {
  if (!retransmit(recovery_.first_lost(), sink, recovery_.lost() == 1, now)) return false;
  qp_.count(CounterId::retransmitted_packets);
  return true;
}

bool Requester::retransmit(wire::Psn psn, wire::PacketSink& sink, bool ends_burst, Instant now) {
  Chunk chunk = recovery_.chunk_to_retransmit(psn);
  chunk.is_retransmit = true;
  if (!push_request(chunk, sink, {.ends_burst = ends_burst})) return false;
  recovery_.on_retransmitted(psn, chunk, now);
  return true;
}

// New packets from the cursor on. Returns how many.
uint32_t Requester::send_new(wire::PacketSink& sink, Instant now, const TransmitTurn& turn) {
  const size_t room = sink.room_on(qp_.attr.path);
  const auto batch_limit = static_cast<uint32_t>(std::min<size_t>(turn.budget, room));
  if (const uint32_t batch = recovery_.is_active() ? 0 : batches_.plan(batch_limit); batch != 0) {
    const wire::Psn first = cursor_.next();
    uint32_t left = batch;
    batches_.send(batch, [&](const Chunk& range, bool is_reordered) {
      left -= range.packets;
      push_range(range, sink,
                 {.ends_burst = left == 0,
                  .is_reordered = is_reordered,
                  .only_active_qp = turn.only_active_qp});
    });
    recovery_.start_timers(first, now);
    return batch;
  }
  if (!cursor_.request().numbered) cursor_.number(qp_.packet_payload_bytes(), *qp_.peer);
  // The last packet of the turn is not in a run, because it may end a burst.
  const uint32_t longest_run = std::min(batch_limit - 1, batches_.packets_before_next_plan());
  Chunk run{.at = cursor_.place(), .packets = longest_run, .first = cursor_.next()};
  run.packets = recovery_.is_active() ? 0 : push_run(run, sink, {});
  if (run.packets != 0) {
    cursor_.advance(run.packets);
    recovery_.on_sent(run, now);
    return run.packets;
  }
  // Other queue pairs may fill the window before the next turn.
  const bool ends_burst = qp_.peer->users > 1 && (turn.budget == 1 || room == 1);
  const Chunk chunk = cursor_.next_chunk();
  const bool is_read = is_read_or_atomic(cursor_.request().op);
  if (!push_request(chunk, sink,
                    {.ends_burst = ends_burst, .only_active_qp = turn.only_active_qp})) {
    return 0;
  }
  if (is_read) reads_.push_back({chunk.first, chunk.end() - 1});
  cursor_.advance(chunk.packets);
  recovery_.on_sent(chunk, now);
  return 1;
}

// Packets of one message that leave one after the other. Their memory is accessible.
void Requester::push_range(Chunk range, wire::PacketSink& sink, const PacketOptions& options) {
  while (range.packets != 0) {
    Chunk sent = range;
    sent.packets = options.ends_burst ? range.packets - 1 : range.packets;
    sent.packets = push_run(sent, sink, options);
    if (sent.packets == 0) {
      PacketOptions its = options;
      its.ends_burst = options.ends_burst && range.packets == 1;
      sent.packets = 1;
      push_request(sent, sink, its);
    }
    recovery_.add_in_flight(cursor_.cost_of(sent));
    range.at.packet += sent.packets;
    range.first = sent.end();
    range.packets -= sent.packets;
  }
}

// Sends packets from the front of `range` as a run: those in the middle of a message that the
// window has room for. None of them ends a burst. Returns their number; 0: there are less than two,
// or their payload is not in one memory area, or the lkeys do not grant the access.
uint32_t Requester::push_run(const Chunk& range, wire::PacketSink& sink,
                             const PacketOptions& options) {
  const SendWqe& wqe = queue().at(range.at.index);
  // A rate limit applies to each packet.
  const bool is_paced = qp_.attr.rate_limit != 0 || qp_.peer->has_rate();
  if (range.packets < 2 || range.at.packet == 0 || !is_message(wqe.op) || is_paced) return 0;
  const uint32_t bytes = wqe.packet_payload_bytes;
  const uint32_t cost = bytes + PeerPath::kPacketOverhead;
  const uint32_t room = qp_.peer->room();
  const uint32_t limit = std::min({range.packets, wqe.packets - 1 - range.at.packet,
                                   room / cost + (room % cost != 0 ? 1 : 0),
                                   wire::kMaxPayloadBytes / bytes, wire::TxRun::kMaxPackets});
  if (limit < 2) return 0;
  Gather payload;
  if (!gather_message(qp_, queue(), range.at.index, range.at.packet * bytes, limit * bytes,
                      payload)) {
    return 0;
  }
  const std::span<const std::byte> area = payload.view().front();
  const uint32_t count = static_cast<uint32_t>(area.size()) / bytes;
  if (count < 2) return 0;

  uint64_t ack_requests = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const bool asks = ack_requests_.next({.fills_window = room <= (i + 1) * cost});
    ack_requests |= uint64_t{asks} << i;
  }
  wire::Packet p;
  p.bth.psn = range.first;
  p.bth.extension_flags = qp_.extensions.request_flag(options.is_reordered);
  p.in_window = true;
  p.xrc_srqn = wqe.remote_srqn;
  fill_message(wqe, range.at.packet, p);
  core::push_run(qp_, sink, p, area.first(count * bytes), bytes, ack_requests);
  return count;
}

// False, and nothing is sent, if the request's lkeys do not grant the access.
bool Requester::push_request(const Chunk& chunk, wire::PacketSink& sink,
                             const PacketOptions& options) {
  const SendWqe& wqe = queue().at(chunk.at.index);
  wire::Packet p;
  p.bth.psn = chunk.first;
  p.bth.extension_flags = qp_.extensions.request_flag(options.is_reordered);
  p.bth.ack_request = true;
  p.in_window = !chunk.is_retransmit;
  p.xrc_srqn = wqe.remote_srqn;
  switch (wqe.op) {
    case SendOp::Read:
      fill_read(wqe, chunk, p);
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
      p.flush = {wqe.flush.placement, wqe.flush.selectivity};
      p.reth = {wqe.remote_address, wqe.rkey, wqe.flush.length};
      break;
    default:
      return push_message_packet(chunk.at, p, sink, options);
  }
  push_packet(qp_, sink, p, {}, 0);
  return true;
}

void Requester::fill_read(const SendWqe& wqe, const Chunk& chunk, wire::Packet& p) const {
  const uint32_t offset = chunk.at.packet * wqe.packet_payload_bytes;
  const bool to_the_end = chunk.at.packet + chunk.packets == wqe.packets;
  p.bth.opcode = qp_.opcode(wire::Opcode::RcReadRequest);
  p.reth = {wqe.remote_address + offset, wqe.rkey,
            to_the_end ? wqe.length - offset : chunk.packets * wqe.packet_payload_bytes};
  p.packet_payload_bytes = wqe.packet_payload_bytes;
}

// A message of one packet. Packets of a longer one must have equal sizes to share a GSO batch, so
// there the ACK follows them.
bool Requester::can_piggyback(const wire::PacketSink& sink, Instant now) const {
  if (!qp_.extensions.peer_buffers_requests() || recovery_.is_active() ||
      cursor_.has_outstanding() || cursor_.index() + 1 != queue().tail()) {
    return false;
  }
  const SendWqe& wqe = cursor_.request();
  return is_message(wqe.op) && wqe.length + kPiggybackBytes <= qp_.packet_payload_bytes() &&
         !(can_access() && direct_.is_likely(sink, now));
}

// The headers of one packet of a SEND or WRITE.
void Requester::fill_message(const SendWqe& wqe, uint32_t packet_index, wire::Packet& p) const {
  const bool last = packet_index + 1 == wqe.packets;
  p.bth.opcode = qp_.opcode(message_opcode(wqe.op, packet_index == 0, last));
  // Only a message that consumes a receive can raise an event (IBA 9.2.3).
  const bool consumes_receive = wqe.op != SendOp::Write && wqe.op != SendOp::AtomicWrite;
  p.bth.solicited = last && consumes_receive && (wqe.flags & kSolicited) != 0;
  p.reth = {wqe.remote_address, wqe.rkey, wqe.length};
  p.immediate = wqe.immediate_or_rkey;
  p.invalidate_rkey = wqe.immediate_or_rkey;
  p.packet_payload_bytes = wqe.packet_payload_bytes;
}

// Piggybacks the ACK that AckScheduler offers, if any.
void Requester::piggyback_ack(uint64_t index, wire::Packet& p) {
  p.piggyback = qp_.acks.take_offer(index);
  if (!p.piggyback) return;
  p.bth.extension_flags = qp_.extensions.piggyback_flag();
  p.bth.becn = qp_.acks.take_echo();
  qp_.count(CounterId::acks_piggybacked);
}

bool Requester::push_message_packet(Place at, wire::Packet& p, wire::PacketSink& sink,
                                    const PacketOptions& options) {
  const SendWqe& wqe = queue().at(at.index);
  const uint32_t offset = at.packet * wqe.packet_payload_bytes;
  const uint32_t bytes = SendCursor::packet_bytes(wqe, at.packet);
  const bool last = at.packet + 1 == wqe.packets;

  Gather payload;
  if (!gather_message(qp_, queue(), at.index, offset, bytes, payload)) {
    // Requests posted before it still complete first.
    denied_ = at.index;
    if (at.index == queue().head()) fail_head(WcStatus::LocalProtection);
    return false;
  }

  fill_message(wqe, at.packet, p);
  p.last = last && at.index + 1 == queue().tail() && options.only_active_qp;
  p.bth.ack_request =
      ack_requests_.next({.ends_message = last,
                          .ends_burst = options.ends_burst,
                          .fills_window = qp_.peer->fills(SendCursor::cost_of(wqe, at.packet, 1)),
                          .rate_limit_kbps = qp_.attr.rate_limit});
  piggyback_ack(at.index, p);
  push_packet(qp_, sink, p, payload.view(), bytes);
  return true;
}

}  // namespace verbena::core
