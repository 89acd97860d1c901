// The objects of a Nic: queue pairs and their paths, address handles, multicast groups, shared
// receive queues.
#include <time.h>

#include <algorithm>

#include "base/exhaustion.h"
#include "runtime/log.h"
#include "runtime/nic.h"

#include "host/local_address.h"

namespace verbena::runtime {

Result<core::QueuePair*> Nic::create_qp(const core::QpConfig& config, Owner* owner) {
  // Datagrams to any address of the device, and requests for any shared receive queue of an XRC
  // domain, come to the first lane.
  const bool only_first =
      config.type == core::QpType::Ud || config.type == core::QpType::XrcReceive;
  Guard guard(lanes_.choose(config.send_cq, config.receive_cq, only_first));
  auto qp = guard.engine().create_qp(config);
  if (qp.ok()) qp.value()->owner = owner;
  return qp;
}

Result<core::QueuePair*> Nic::open_qp(wire::Qpn qpn, uint32_t xrc_domain, Owner* owner) {
  Guard guard(*this);
  core::QueuePair* qp = guard.engine().find(qpn);
  if (qp == nullptr || qp->config().type != core::QpType::XrcReceive ||
      qp->config().xrc_domain != xrc_domain) {
    return Error{EINVAL, "no XRC receive queue pair of this number in the XRC domain"};
  }
  owner->next = static_cast<Owner*>(qp->owner);
  qp->owner = owner;
  return qp;
}

Status Nic::destroy_qp(core::QueuePair* qp, Owner* owner) {
  Lane& lane = lane_of(*qp);
  Copies copies;
  Status destroyed = end_qp(lane, qp, owner, copies);
  await_end_of(lane, copies);
  return destroyed;
}

Status Nic::end_qp(Lane& lane, core::QueuePair* qp, Owner* owner, Copies& copies) {
  Guard guard(lane);
  if (!lane.engine().groups_of(*qp).empty()) {
    return Error{EBUSY, "the queue pair is attached to a multicast group: ibv_detach_mcast first"};
  }
  auto* first = static_cast<Owner*>(qp->owner);
  for (Owner** link = &first; *link != nullptr; link = &(*link)->next) {
    if (*link != owner) continue;
    *link = owner->next;
    break;
  }
  qp->owner = first;
  if (first != nullptr) return {};
  const bool has_path = qp->peer() != nullptr;
  const wire::PathId path = qp->attributes().path;
  const wire::Qpn qpn = qp->qpn();
  const wire::Qpn peer = qp->attributes().dest_qpn;
  lane.acknowledge_received();
  lane.engine().destroy_qp(qp, lane.time());
  lane.datapath().revoke_copies_through(qpn, peer, copies);
  if (has_path && !is_abandoned()) lane.datapath().all->close_path(path);
  return {};
}

Result<wire::Gid> Nic::source_for(const core::AddressVector& address) const {
  const wire::Gid source = [&] {
    const SpinLock::Guard guard(gids_lock_);
    return gids_.at(address.sgid_index);
  }();
  if (source.is_zero()) {
    return Error{EINVAL, "sgid_index names an empty entry of the GID table (see: verbena devices)"};
  }
  if (address.destination.is_zero()) {
    return Error{EINVAL, "the destination GID is not an address of a host"};
  }
  if (source.is_ipv4() != address.destination.is_ipv4()) {
    return Error{EINVAL, "source and destination GID differ in IP version: pick another GID index"};
  }
  return source;
}

Result<wire::PathId> Nic::open_path(Lane& lane, const core::AddressVector& address,
                                    const wire::Gid& source, wire::Qpn peer) {
  // Nothing slows a sender of datagrams down when they are marked (UD has no connected peer).
  const bool ecn_capable = peer != wire::Qpn() && core::is_ecn_capable(*config().congestion);
  auto path = lane.datapath().all->open_path(
      {.source = source,
       .destination = address.destination,
       .peer = peer,
       .traffic_class =
           config().traffic_class(address.traffic_class, ecn_capable ? wire::kEct0 : uint8_t{0}),
       .hop_limit = address.hop_limit != 0 ? address.hop_limit : uint8_t{64},
       .flow_label = address.flow_label});
  if (!path.ok()) log(LogLevel::Error, "%s: %s", device_.name.c_str(), path.error().why);
  return path;
}

Result<SharedAddress> Nic::open_address(uint32_t pd, const core::AddressVector& address) {
  auto handle = std::make_unique<core::AddressHandle>();
  handle->pd = pd;
  handle->address = address;
  const Status filled = fill_address(*handle);
  if (!filled.ok()) return filled.error();
  return SharedAddress(handle.release(), [this](const core::AddressHandle* last) {
    if (!is_abandoned()) close_address(*last);
    delete last;
  });
}

// Counts the references to a path, which is closed when the last one is released.
Result<wire::PathId> Nic::reference(wire::PathId path) {
  if (try_allocating([&] { lanes_.first().engine().state().paths.open(path); })) return path;
  lanes_.first().datapath().all->close_path(path);
  return Error{ENOMEM, "out of memory"};
}

Status Nic::fill_address(core::AddressHandle& handle) {
  Guard guard(*this);
  const core::AddressVector& address = handle.address;
  if (!address.is_global) {
    return Error{EINVAL, "RoCE needs a GRH: set ah_attr.is_global and grh.sgid_index"};
  }
  if (address.port != 1) return Error{EINVAL, "port_num must be 1"};
  auto source = source_for(address);
  if (!source.ok()) return source.error();
  // The QPN of each datagram determines the process.
  auto path = open_path(guard.lane(), address, source.value(), wire::Qpn());
  if (!path.ok()) return path.error();
  auto referenced = reference(path.value());
  if (!referenced.ok()) return referenced.error();
  handle.path = referenced.value();
  handle.source_gid = source.value();
  handle.mtu = port_.active_mtu;
  return {};
}

void Nic::close_address(const core::AddressHandle& handle) {
  Guard guard(*this);
  guard.engine().state().paths.release(handle.path);
}

Status Nic::attach(core::QueuePair& qp, const wire::Gid& group) {
  Guard guard(*this);
  const bool joined = guard.engine().has_members(group);
  Status attached = guard.engine().attach(qp, group);
  if (!attached.ok() || joined) return attached;
  attached = guard.lane().datapath().wire->join(group);
  if (!attached.ok()) {
    const Status undone = guard.engine().detach(qp, group);
    VERBENA_CHECK(undone.ok());
  }
  return attached;
}

Status Nic::detach(core::QueuePair& qp, const wire::Gid& group) {
  Guard guard(*this);
  Status detached = guard.engine().detach(qp, group);
  if (detached.ok() && !guard.engine().has_members(group))
    guard.lane().datapath().wire->leave(group);
  return detached;
}

Status Nic::modify_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask) {
  if ((mask & core::qp_attr::kAddressVector) != 0) share_memory_with_peer(qp, attr, mask);
  Lane& lane = lane_of(qp);
  Copies copies;
  Status changed = change_qp(lane, qp, attr, mask, copies);
  await_end_of(lane, copies);
  const bool to_rtr = (mask & core::qp_attr::kState) != 0 && attr.state == core::QpState::Rtr;
  if (changed.ok() && to_rtr && !shares_memory(qp)) await_steering_of(lane);
  return changed;
}

// Opens shared memory with the peer before a path to it, if the peer is on this host. All packets
// of the connection then go through memory.
void Nic::share_memory_with_peer(const core::QueuePair& qp, const core::QpAttributes& attr,
                                 uint32_t mask) {
  constexpr Duration kTimeout =
      milliseconds(200);  // for a peer that accepts and then closes the connection
  const wire::Gid& destination = attr.address.destination;
  const Instant until = runtime::now() + kTimeout;
  Lane& lane = lane_of(qp);
  for (bool reached = false; !reached && runtime::now() < until;) {
    {
      Guard guard(lane);
      const wire::Qpn peer =
          (mask & core::qp_attr::kDestQpn) != 0 ? attr.dest_qpn : qp.attributes().dest_qpn;
      if (is_abandoned() || lane.datapath().local == nullptr) return;
      datapath::SelectingDatapath& local = *lane.datapath().local;
      reached = local.reach(destination, peer, runtime::now());
      lane.make_progress();
      if (!reached) local.attend();
      lane.log_notice();
    }
    const timespec pause{0, 20'000};
    if (!reached) nanosleep(&pause, nullptr);
  }
}

bool Nic::shares_memory(const core::QueuePair& qp) {
  Guard guard(lane_of(qp));
  const LaneDatapath& datapath = guard.lane().datapath();
  return datapath.local != nullptr && datapath.local->packet_bytes(qp.attributes().path) != 0;
}

// Opens the path for the address vector in `attr`, which gets the path's properties.
Status Nic::set_path(Lane& lane, const core::QueuePair& qp, core::QpAttributes& attr,
                     uint32_t mask) {
  auto source = source_for(attr.address);
  if (!source.ok()) return source.error();
  if (attr.address.destination.is_multicast()) {
    return Error{EINVAL, "the destination GID is not an address of a host"};
  }
  const wire::Qpn peer =
      (mask & core::qp_attr::kDestQpn) != 0 ? attr.dest_qpn : qp.attributes().dest_qpn;
  auto path = open_path(lane, attr.address, source.value(), peer);
  if (!path.ok()) return path.error();
  attr.path = path.value();
  attr.source_gid = source.value();
  attr.path_packet_bytes = lane.datapath().all->packet_bytes(path.value());
  attr.is_on_this_host = host::was_local_just_now(
      host::local_address(attr.address.destination, device_.interface_index));
  return {};
}

// A datagram may be sent to any address of the device before the device sends from that address.
Status Nic::receive_datagrams() {
  if (!takes_datagrams_) lanes_.first().datapath().all->report_ip_headers();
  takes_datagrams_ = true;
  return listen_everywhere();
}

Status Nic::change_qp(Lane& lane, core::QueuePair& qp, core::QpAttributes attr, uint32_t mask,
                      Copies& copies) {
  Guard guard(lane);
  Status checked = qp.check_modify(attr, mask);
  if (!checked.ok()) return checked;
  const bool had_path = qp.peer() != nullptr;
  const wire::PathId old_path = qp.attributes().path;
  const bool sets_address = (mask & core::qp_attr::kAddressVector) != 0;
  if (sets_address) {
    Status set = set_path(lane, qp, attr, mask);
    if (!set.ok()) return set;
  }
  const bool sets_state = (mask & core::qp_attr::kState) != 0;
  if (sets_state && attr.state == core::QpState::Rtr && qp.type() == core::QpType::Ud) {
    Status listening = receive_datagrams();
    if (!listening.ok()) return listening;
  }
  const bool ends =
      sets_state && (attr.state == core::QpState::Reset || attr.state == core::QpState::Error);
  if (ends) lane.acknowledge_received();
  const wire::Qpn peer_before = qp.attributes().dest_qpn;
  if (!try_allocating([&] { lane.engine().modify_qp(qp, attr, mask, lane.time()); })) {
    if (sets_address) lane.datapath().all->close_path(attr.path);
    return Error{ENOMEM, "out of memory"};
  }
  lane.datapath().revoke_copies_through(qp.qpn(), peer_before, copies);
  const bool to_reset = qp.state() == core::QpState::Reset;
  if (had_path && (sets_address || to_reset)) lane.datapath().all->close_path(old_path);
  lane.transmit(lane.time());
  return {};
}

core::SharedReceiveQueue* Nic::create_srq(const core::SrqConfig& config, Owner* owner) {
  // The queue pairs of an XRC domain complete its receives.
  if (config.cq != nullptr) lanes_.choose(nullptr, config.cq, true);
  Guard guard(*this);
  core::SharedReceiveQueue* srq = guard.engine().create_srq(config);
  srq->owner = owner;
  return srq;
}

Status Nic::modify_srq(core::SharedReceiveQueue& srq, std::optional<uint32_t> max_wr,
                       std::optional<uint32_t> limit) {
  const LaneSet::AllLocked all(lanes_);
  Lane& first = lanes_.first();
  const Status modified = first.engine().modify_srq(srq, max_wr, limit);
  first.deliver();
  return modified;
}

void Nic::destroy_srq(core::SharedReceiveQueue* srq) {
  // Queue pairs of any lane have raised events about it.
  const LaneSet::AllLocked all(lanes_);
  lanes_.each([&](Lane& lane) {
    std::erase_if(lane.engine().state().events,
                  [&](const core::AsyncEvent& e) { return e.srq == srq; });
  });
  lanes_.first().engine().destroy_srq(srq);
}

void Nic::forget_cq(core::CompletionQueue* cq) {
  lanes_.each([&](Lane& lane) {
    Guard guard(lane);
    lane.late_events().forget(cq);
    std::erase(guard.engine().state().notified, cq);
    std::erase_if(guard.engine().state().events,
                  [&](const core::AsyncEvent& e) { return e.cq == cq; });
  });
  const auto* const owner = static_cast<const Owner*>(cq->owner);
  if (owner != nullptr && owner->lanes != nullptr) lanes_.release(*owner->lanes);
}

void Nic::arm(const CqLanes& lanes, core::CompletionQueue& cq, core::Armed level) {
  {
    PostingGuard guard(lanes);
    guard.lane().arm(cq, level);
  }
  lanes.each_other([](Lane& lane) {
    const PostingGuard guard(lane);
    lane.expect_sleep();
  });
}

}  // namespace verbena::runtime
