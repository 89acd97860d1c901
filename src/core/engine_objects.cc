// The engine's objects: queue pairs, their peers, shared receive queues and multicast groups.
#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "base/exhaustion.h"
#include "core/engine.h"

namespace verbena::core {
namespace {

// QP indices 0 and 1 of every slot are reserved: those of slot 0 are QP0 and QP1.
constexpr uint32_t kReservedIndices = 2;
constexpr uint32_t kUsableIndices = (1u << 16) - kReservedIndices;

constexpr uint32_t kSrqNumbers = 1u << 24;  // 0 is not used

}  // namespace

Engine::Engine(const EngineConfig& config)
    : config_(config),
      own_memory_(config.memory == nullptr ? std::make_unique<MemoryRegistry>(config.secret)
                                           : nullptr),
      state_(config.memory == nullptr ? *own_memory_ : *config.memory, config.secret,
             config.extensions) {
  // A random start, so that numbers differ from those of a previous engine.
  next_index_ = static_cast<uint32_t>(state_.prng.below(kUsableIndices)) + kReservedIndices;
  last_srq_ = static_cast<uint32_t>(state_.prng.below(kSrqNumbers));
  short_ack_.bth.opcode = static_cast<uint8_t>(wire::Opcode::RcAck);
  short_ack_.op = wire::info_of(short_ack_.bth.opcode);
}

Engine::~Engine() { expose_through(nullptr); }

void Engine::expose_through(wire::Exposure* exposure) {
  if (state_.exposure != nullptr) memory().remove_exposure(state_.exposure);
  state_.exposure = exposure;
  if (exposure != nullptr) memory().add_exposure(exposure);
}

Result<QueuePair*> Engine::create_qp(const QpConfig& config) {
  if (qps_.size() >= std::min(config_.max_qps, kUsableIndices)) {
    return Error{ENOMEM, "too many queue pairs (see max_qp)"};
  }
  // Numbers are reused as late as possible, so that packets of a past connection match no queue
  // pair.
  const auto after = [](uint32_t index) {
    return index + 1 < kReservedIndices + kUsableIndices ? index + 1 : kReservedIndices;
  };
  while (qps_.find(next_index_) != nullptr) next_index_ = after(next_index_);
  const uint32_t index = next_index_;
  next_index_ = after(index);
  reserve_lists(qps_.size() + 1);
  auto qp = std::make_unique<QueuePair>(state_, wire::Qpn::of_slot(config_.slot, index), config);
  qp->scheduling.serial = ++last_serial_;
  return qps_.insert(index, std::move(qp));
}

// Reserves all that so many queue pairs may put into lists while packets are received and time
// passes: there is no caller then to return ENOMEM to.
void Engine::reserve_lists(size_t qps) {
  reserve_ahead(ready_, 2 * qps);  // half of the entries may be served already
  reserve_ahead(deadlines_, max_deadlines(qps) + 1);
  reserve_ahead(state_.notified, 4 * qps);  // two completion queues each, which may be armed again
  reserve_ahead(state_.events, 4 * qps);
}

void Engine::destroy_qp(QueuePair* qp, Instant now) {
  QpAttributes reset;
  reset.state = QpState::Reset;
  qp->modify(reset, qp_attr::kState);
  drop_from_lists(*qp);
  groups_.detach_from_all(*qp);
  std::erase_if(state_.events, [&](const AsyncEvent& e) { return e.qp == qp; });
  release_peer(*qp, now);
  memory().unbind_windows_of(qp->qpn());
  qps_.erase(qp->qpn().index());
}

void Engine::drop_from_lists(QueuePair& qp) {
  if (qp.scheduling.in_ready_list) {
    drop_served();
    ready_.erase(std::find(ready_.begin(), ready_.end(), &qp));
  }
  if (qp.scheduling.in_waiting_list && qp.peer() != nullptr) qp.peer()->waiting.remove(&qp);
  qp.scheduling.in_ready_list = qp.scheduling.in_waiting_list = false;
  end_reservation(qp);
}

void Engine::modify_qp(QueuePair& qp, const QpAttributes& attr, uint32_t mask, Instant now) {
  state_.now = now;
  const bool to_reset = (mask & qp_attr::kState) != 0 && attr.state == QpState::Reset;
  PeerPath* peer = nullptr;
  if (!to_reset && (mask & qp_attr::kAddressVector) != 0) {
    // Before anything changes, because it allocates.
    QpAttributes connected = attr;
    if ((mask & qp_attr::kDestQpn) == 0) connected.dest_qpn = qp.attributes().dest_qpn;
    if ((mask & qp_attr::kPathMtu) == 0) connected.path_mtu = qp.attributes().path_mtu;
    peer = acquire_peer(connected);
  }
  try {
    qp.modify(attr, mask);
  } catch (const std::bad_alloc&) {
    if (peer != nullptr) release_peer(*peer, now);
    throw;
  }
  if (to_reset || peer != nullptr) {
    drop_from_lists(qp);
    release_peer(qp, now);
  }
  if (peer != nullptr) qp.set_peer(peer);
  after_change(qp, now);
}

PeerPath* Engine::acquire_peer(const QpAttributes& attr) {
  const std::pair key{attr.address.destination, attr.dest_qpn.slot()};
  auto found = peers_.find(key);
  if (found == peers_.end()) {
    auto peer = std::make_unique<PeerPath>(attr.is_on_this_host ? within_host(*config_.congestion)
                                                                : *config_.congestion);
    peer->set_payload_bytes(wire::bytes_of(attr.path_mtu));
    peer->destination = key.first;
    peer->slot = key.second;
    peer->waiting.reserve(1);
    found = peers_.emplace(key, std::move(peer)).first;
  }
  PeerPath& peer = *found->second;
  peer.waiting.reserve(peer.users + 1);
  if (attr.path_packet_bytes != 0) peer.use_shared_memory();
  ++peer.users;
  return &peer;
}

void Engine::release_peer(PeerPath& peer, Instant now) {
  if (--peer.users == 0) {
    peers_.erase({peer.destination, peer.slot});
  } else {
    wake_waiting(peer, now);  // its bytes in flight no longer fill the window
  }
}

void Engine::release_peer(QueuePair& qp, Instant now) {
  PeerPath* peer = qp.peer();
  if (peer == nullptr) return;
  qp.set_peer(nullptr);
  release_peer(*peer, now);
}

void Engine::revert_paths_to_mtu(const std::function<bool(wire::PathId)>& takes_large_packets,
                                 Instant now) {
  state_.now = now;
  qps_.each([&](QueuePair& qp) {
    const QpAttributes& attr = qp.attributes();
    if (attr.path_packet_bytes == 0 || takes_large_packets(attr.path)) return;
    qp.revert_path_to_mtu(now);
    after_change(qp, now);
  });
}

void Engine::fail_all(Instant now) {
  QpAttributes attr;
  attr.state = QpState::Error;
  qps_.each([&](QueuePair& qp) {
    if (qp.state() != QpState::Reset) modify_qp(qp, attr, qp_attr::kState, now);
  });
}

void Engine::set_rate_limit(QueuePair& qp, uint32_t kbps, uint32_t burst_bytes, Instant now) {
  qp.set_rate_limit(kbps, burst_bytes);
  after_change(qp, now);
}

SharedReceiveQueue* Engine::create_srq(const SrqConfig& config) {
  // Numbers are reused as late as possible, as in create_qp().
  do {
    last_srq_ = (last_srq_ + 1) % kSrqNumbers;
  } while (last_srq_ == 0 || state_.srqs.contains(last_srq_));
  auto srq = std::make_unique<SharedReceiveQueue>(last_srq_, config);
  return state_.srqs.emplace(last_srq_, std::move(srq)).first->second.get();
}

Status Engine::modify_srq(SharedReceiveQueue& srq, std::optional<uint32_t> max_wr,
                          std::optional<uint32_t> limit) {
  const SharedReceiveQueue::Modified modified = srq.modify(max_wr, limit);
  if (modified.limit_reached) state_.raise({.kind = EventKind::SrqLimitReached, .srq = &srq});
  return modified.status;
}

void Engine::destroy_srq(SharedReceiveQueue* srq) {
  if (srq->config().xrc_domain != 0) {
    qps_.each([&](QueuePair& qp) { qp.forget_srq(srq); });
  }
  std::erase_if(state_.events, [&](const AsyncEvent& e) { return e.srq == srq; });
  state_.srqs.erase(srq->number());
}

Status Engine::attach(QueuePair& qp, const wire::Gid& group) {
  if (qp.type() != QpType::Ud) return Error{EINVAL, "only UD queue pairs take multicast"};
  if (!group.is_multicast()) return Error{EINVAL, "the GID is not a multicast address"};
  return groups_.attach(qp, group);
}

Status Engine::detach(QueuePair& qp, const wire::Gid& group) {
  if (groups_.detach(qp, group)) return {};
  return Error{EINVAL, "the queue pair is not attached to the group"};
}

}  // namespace verbena::core
