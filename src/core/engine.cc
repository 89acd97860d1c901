// Dispatch, scheduling and deadlines. engine_objects.cc creates and changes queue pairs.
#include "core/engine.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/exhaustion.h"
#include "wire/local_peer.h"

namespace verbena::core {
namespace {

// One queue pair's share of a round: about one GSO batch.
constexpr uint32_t kPacketsPerQpAndRound = 32;
constexpr uint32_t kBytesPerQpAndRound = 64 * 1024;
constexpr uint32_t kRoundsOfOnlyQp = 16;

uint32_t packets_per_round(const QueuePair& qp) {
  return std::clamp(kBytesPerQpAndRound / qp.packet_payload_bytes(), 1u, kPacketsPerQpAndRound);
}

// The share of the congestion window that a round uses.
uint32_t cost_of_round(const QueuePair& qp) {
  return packets_per_round(qp) * (qp.packet_payload_bytes() + PeerPath::kPacketOverhead);
}

}  // namespace

QueuePair* Engine::find(wire::Qpn qpn) {
  return qpn.slot() == config_.slot ? qps_.find(qpn.index()) : nullptr;
}

Status Engine::post_send(QueuePair& qp, std::span<const SendRequest> requests, Instant now) {
  state_.now = now;
  Status status = qp.post_send(requests);
  // A queue pair in the ready list is served in its turn.
  if (!status.ok() || qp.scheduling.in_ready_list) return status;
  if (qp.can_send_at_once()) {
    make_ready(qp);
  } else {
    after_change(qp, now);
  }
  return status;
}

Status Engine::post_receive(QueuePair& qp, const ReceiveRequest& request, Instant now) {
  state_.now = now;
  Status status = qp.post_receive(request);
  if (qp.state() == QpState::Error) after_change(qp, now);
  return status;
}

Engine::Arrivals Engine::on_packets(std::span<const wire::RxPacket> packets, Instant now) {
  order_received_packets(config_.slot);
  state_.now = now;
  Arrivals arrivals;
  if (packets.size() == 1 && try_fast_receive(packets.front(), now, arrivals)) return arrivals;
  return on_batch(packets, now);
}

Engine::Arrivals Engine::on_batch(std::span<const wire::RxPacket> packets, Instant now) {
  Arrivals arrivals;
  QueuePair* touched = nullptr;
  size_t runs_from = 0;    // packets before this one belong to a run that was refused
  bool exchanged = false;  // this packet has changed places with the one before
  for (size_t n = 0; n < packets.size(); ++n) {
    const bool ahead = !exchanged && ack_overtakes(packets.subspan(n));
    const wire::RxPacket& rx = packets[exchanged ? n - 1 : ahead ? n + 1 : n];
    exchanged = ahead;
    state_.counters.add(CounterId::packets_received);
    wire::Packet* const packet = parse(rx);
    if (packet == nullptr) {
      state_.counters.add(CounterId::malformed_packets);
      continue;
    }
    const wire::Verb verb = packet->op.verb;
    const bool is_message = verb == wire::Verb::Send || verb == wire::Verb::Write;
    if (verb == wire::Verb::Cnp) {
      on_cnp(*packet, *rx.meta, now);
      continue;
    }
    if (packet->bth.destination == wire::kMulticastQpn) {
      on_multicast(*packet, *rx.meta, now);
      arrivals.messages = arrivals.receives = true;
      continue;
    }
    QueuePair* qp = find(packet->bth.destination);
    if (qp == nullptr) {
      if (on_management(*packet, rx)) arrivals.responses_due = true;
      continue;
    }
    if (touched != nullptr && touched != qp) after_change(*touched, now);
    touched = qp;
    const bool may_begin_run = n >= runs_from && &rx == &packets[n];
    const RunResult in_run =
        may_begin_run ? on_run(*qp, *packet, packets.subspan(n), now) : RunResult{};
    if (in_run.refused != 0) runs_from = n + in_run.refused;
    if (in_run.handled != 0) {
      n += in_run.handled - 1;
    } else if (!try_allocating([&] { qp->on_packet(*packet, *rx.meta, now); })) [[unlikely]] {
      state_.counters.add(CounterId::out_of_memory);
      continue;
    }
    if (packet->op.direction == wire::Direction::Response) {
      arrivals.responses = true;
    } else if (is_message) {
      arrivals.messages = true;
      if (verb == wire::Verb::Send || packet->op.has_immediate) arrivals.receives = true;
    } else {
      arrivals.responses_due = true;
    }
  }
  if (touched != nullptr) after_change(*touched, now);
  return arrivals;
}

// Handles the run that begins with `first`, the first of `packets`. Packets that it refuses take
// the ordinary path, one by one, with the same result.
Engine::RunResult Engine::on_run(QueuePair& qp, const wire::Packet& first,
                                 std::span<const wire::RxPacket> packets, Instant now) {
  if (first.op.position != wire::Position::Middle || !config_.fast_path) return {};
  const wire::PacketRun run = wire::PacketRun::at_front_of(packets, first);
  // An ACK behind the run is handled before the last packet.
  const size_t count = ack_overtakes(packets.subspan(run.size() - 1)) ? run.size() - 1 : run.size();
  if (count < 2) return {};
  size_t handled = 0;
  if (!try_allocating([&] { handled = qp.on_run(run.first_packets(count), now); })) [[unlikely]]
    state_.counters.add(CounterId::out_of_memory);
  if (handled == 0) return {.refused = count};
  state_.counters.add(CounterId::packets_received, handled - 1);
  return {.handled = handled};
}

// Null if the bytes are not a packet. The result is valid until the next call.
wire::Packet* Engine::parse(const wire::RxPacket& rx) {
  if (rx.bytes.empty()) {
    short_ack_.bth.destination = rx.ack.destination;
    short_ack_.bth.psn = rx.ack.psn;
    return &short_ack_;
  }
  wire::ParseError why{};
  if (!wire::Packet::parse_into(packet_, rx.bytes, &why, rx.separate_payload)) return nullptr;
  packet_.packet_payload_bytes = rx.packet_payload_bytes;
  return &packet_;
}

void Engine::on_cnp(const wire::Packet& packet, const wire::RxMeta& meta, Instant now) {
  QueuePair* const qp = find(packet.bth.destination);
  if (qp == nullptr || !qp->on_cnp(packet, meta, now)) {
    return state_.counters.add(CounterId::rp_cnp_ignored);
  }
  state_.counters.add(CounterId::rp_cnp_handled);
  after_change(*qp, now);
}

// A packet whose QPN is no queue pair of this engine: a MAD, or one to drop.
bool Engine::on_management(const wire::Packet& packet, const wire::RxPacket& rx) {
  if (packet.bth.destination != wire::kManagementQpn) {
    state_.counters.add(CounterId::unknown_qp);
    return false;
  }
  management_.on_packet(packet, rx.bytes, *rx.meta);
  return true;
}

// Each member gets a copy, or drops and counts the packet as any other.
void Engine::on_multicast(wire::Packet& packet, const wire::RxMeta& meta, Instant now) {
  const std::span<QueuePair* const> members = groups_.members(meta.destination);
  if (members.empty() || packet.op.transport != wire::Transport::Ud) {
    state_.counters.add(CounterId::unknown_qp);
    return;
  }
  for (QueuePair* qp : members) {
    if (meta.own && packet.deth.source == qp->qpn()) continue;
    if (!try_allocating([&] { qp->on_packet(packet, meta, now); })) {
      state_.counters.add(CounterId::out_of_memory);
    }
    after_change(*qp, now);
  }
}

// Called after each change of a queue pair: it may have something to send, or may have freed a part
// of the window that other queue pairs wait for. `wait_at_front`: it waits before all others.
void Engine::after_change(QueuePair& qp, Instant now, bool wait_at_front) {
  PeerPath* peer = qp.peer();
  const SendSide::Readiness readiness = qp.requests(now);
  const bool requests = readiness == SendSide::Readiness::Ready;
  // Requests queue behind those that already wait for the window, even if it is open now.
  // Otherwise a busy queue pair would starve the others. UC and UD do not use the window.
  const bool others_wait = peer != nullptr && !peer->waiting.empty() && !is_unreliable(qp.type());
  if (qp.responses_ready() || (requests && !others_wait)) make_ready(qp);
  if (readiness != SendSide::Readiness::No && !qp.scheduling.in_ready_list &&
      !qp.scheduling.in_waiting_list) {
    qp.scheduling.in_waiting_list = true;
    if (wait_at_front) {
      peer->waiting.push_front(&qp);
    } else {
      peer->waiting.push_back(&qp);
    }
  }
  if (peer != nullptr && !peer->waiting.empty()) wake_waiting(*peer, now);
  schedule(qp);
  if (state_.overrun) [[unlikely]]
    fail_overrun(now);
}

void Engine::fail_overrun(Instant now) {
  const auto is_overrun = [](const CompletionQueue* cq) { return cq != nullptr && cq->overrun(); };
  state_.now = now;
  state_.overrun = false;
  for (const auto& [number, srq] : state_.srqs) {
    if (!is_overrun(srq->config().cq) || std::exchange(srq->overrun_reported, true)) continue;
    state_.raise({.kind = EventKind::SrqError, .srq = srq.get()});
  }
  qps_.each([&](QueuePair& qp) {
    if (!is_overrun(qp.config().send_cq) && !is_overrun(qp.config().receive_cq)) return;
    qp.fail_by_overrun();
    after_change(qp, now);
  });
}

// Wakes as many queue pairs as the window allows, in the order in which they began to wait. Each
// reserves its share until it has sent; then after_change() wakes the next ones. While pacing shuts
// the path, the first one gets the deadline that resumes it: the one that shut it may have nothing
// more to send.
void Engine::wake_waiting(PeerPath& peer, Instant now) {
  while (!peer.waiting.empty() && (peer.is_paced() || peer.room() > peer.reserved_bytes)) {
    QueuePair* qp = peer.waiting.front();
    const SendSide::Readiness readiness = qp->requests(now);
    if (readiness == SendSide::Readiness::WaitsForWindow) {  // needs more of the window
      schedule(*qp);  // or the path is paced: its deadline resumes it
      break;
    }
    peer.waiting.pop_front();
    qp->scheduling.in_waiting_list = false;
    if (readiness == SendSide::Readiness::No) {  // its pacer has closed: its deadline resumes it
      schedule(*qp);
      continue;
    }
    qp->scheduling.reserved_bytes = cost_of_round(*qp);
    peer.reserved_bytes += qp->scheduling.reserved_bytes;
    make_ready(*qp);
  }
}

// Whether the queue pair had a reservation.
bool Engine::end_reservation(QueuePair& qp) {
  const uint32_t reserved = std::exchange(qp.scheduling.reserved_bytes, 0);
  if (reserved != 0) qp.peer()->reserved_bytes -= reserved;
  return reserved != 0;
}

void Engine::make_ready(QueuePair& qp) {
  if (qp.scheduling.in_ready_list) return;
  qp.scheduling.in_ready_list = true;
  // Without the served entries, all queue pairs fit (reserve_lists).
  if (ready_.size() == ready_.capacity()) drop_served();
  ready_.push_back(&qp);
}

void Engine::drop_served() {
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(ready_head_));
  ready_head_ = 0;
}

bool Engine::only_responses_to_send(Instant now) const {
  return !management_.anything_to_send() &&
         std::all_of(ready_.begin() + static_cast<ptrdiff_t>(ready_head_), ready_.end(),
                     [&](QueuePair* qp) { return qp->requests(now) == SendSide::Readiness::No; });
}

bool Engine::poll_transmit(wire::PacketSink& sink, Instant now) {
  state_.now = now;
  if (management_.anything_to_send()) management_.transmit(sink);
  if (QueuePair* const sent = try_fast_send(sink, now)) {
    finish_fast_send(*sent, now);
    return anything_to_send();
  }
  const bool only_active_qp = ready_head_ + 1 >= ready_.size();
  while (ready_head_ < ready_.size() && sink.room() > 0) {
    QueuePair* qp = ready_[ready_head_++];
    qp->scheduling.in_ready_list = false;
    const bool reserved = end_reservation(*qp);
    const uint32_t in_flight = reserved ? qp->peer()->in_flight() : 0;
    const bool had_memory = try_allocating([&] { transmit(*qp, sink, now, only_active_qp); });
    // Other queue pairs used up the window: this one keeps its turn.
    const bool wait_at_front = reserved && qp->peer()->in_flight() == in_flight &&
                               qp->requests(now) == SendSide::Readiness::WaitsForWindow;
    after_change(*qp, now, wait_at_front);
    if (!had_memory) [[unlikely]] {  // the owner tries again later
      state_.counters.add(CounterId::out_of_memory);
      break;
    }
  }
  if (ready_head_ == ready_.size()) {
    ready_.clear();
    ready_head_ = 0;
  } else if (ready_head_ > 1024) {
    drop_served();
  }
  return anything_to_send();
}

// Sends one queue pair's share of the round.
void Engine::transmit(QueuePair& qp, wire::PacketSink& sink, Instant now, bool only_active_qp) {
  const wire::LocalPeer* const local = sink.local_peer();
  const bool full =
      local != nullptr && qp.type() != QpType::Ud && local->is_full(qp.attributes().path);
  if (full) {
    qp.try_one_sided(sink, now);
  } else {
    qp.end_backoff(now);
  }
  if (full && qp.back_off(now)) return;
  // More packets at a time fill GSO batches better.
  const uint32_t rounds = ready_head_ == ready_.size() ? kRoundsOfOnlyQp : 1;
  qp.transmit(sink, now,
              {.budget = rounds * packets_per_round(qp),
               .requests = !qp.scheduling.in_waiting_list,
               .only_active_qp = only_active_qp});
}

QueuePair* Engine::qp_of(const DeadlineEntry& entry) {
  QueuePair* qp = find(entry.qpn);
  const bool live = qp != nullptr && qp->scheduling.serial == entry.serial &&
                    qp->scheduling.heap_deadline == entry.at;
  return live ? qp : nullptr;
}

// Entries of destroyed queue pairs, and of deadlines that became earlier, stay in the heap until
// they are due. When there are too many, they are removed.
void Engine::sweep_deadlines() {
  if (deadlines_.size() < max_deadlines(qps_.size())) return;
  std::erase_if(deadlines_, [&](const DeadlineEntry& e) { return qp_of(e) == nullptr; });
  std::make_heap(deadlines_.begin(), deadlines_.end(), std::greater<>{});
}

void Engine::bring_forward(QueuePair& qp, Instant at) {
  sweep_deadlines();
  qp.scheduling.heap_deadline = at;
  deadlines_.push_back({at, qp.qpn(), qp.scheduling.serial});
  std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>{});
}

void Engine::on_deadline(Instant now) {
  state_.now = now;
  while (!deadlines_.empty() && deadlines_.front().at <= now) {
    const DeadlineEntry entry = deadlines_.front();
    std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>{});
    deadlines_.pop_back();
    QueuePair* const qp = qp_of(entry);
    if (qp == nullptr) continue;
    qp->scheduling.heap_deadline = kNever;
    const bool had_memory = try_allocating([&] {
      if (qp->deadline() <= now) qp->on_deadline(now);
    });
    after_change(*qp, now);
    if (!had_memory) [[unlikely]]  // it is still due, and the owner tries again
      return state_.counters.add(CounterId::out_of_memory);
  }
}

Instant Engine::next_deadline() {
  while (!deadlines_.empty()) {
    const DeadlineEntry& top = deadlines_.front();
    QueuePair* const qp = qp_of(top);
    if (qp != nullptr) {
      if (qp->deadline() <= top.at) return top.at;
      qp->scheduling.heap_deadline = kNever;
    }
    std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>{});
    deadlines_.pop_back();
    if (qp != nullptr) schedule(*qp);
  }
  return kNever;
}

}  // namespace verbena::core
