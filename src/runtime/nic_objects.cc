// The objects of a Nic: queue pairs and their paths, address handles, multicast groups, shared
// receive queues.
#include <time.h>

#include <algorithm>

#include "base/exhaustion.h"
#include "runtime/log.h"
#include "runtime/nic.h"

namespace verbena::runtime {

Result<core::QueuePair*> Nic::create_qp(const core::QpConfig& config, Owner* owner) {
  Guard guard(*this);
  auto qp = lane_.engine().create_qp(config);
  if (qp.ok()) qp.value()->owner = owner;
  return qp;
}

Result<core::QueuePair*> Nic::open_qp(wire::Qpn qpn, uint32_t xrc_domain, Owner* owner) {
  Guard guard(*this);
  core::QueuePair* qp = lane_.engine().find(qpn);
  if (qp == nullptr || qp->config().type != core::QpType::XrcReceive ||
      qp->config().xrc_domain != xrc_domain) {
    return Error{EINVAL, "no XRC receive queue pair of this number in the XRC domain"};
  }
  owner->next = static_cast<Owner*>(qp->owner);
  qp->owner = owner;
  return qp;
}

Status Nic::destroy_qp(core::QueuePair* qp, Owner* owner) {
  Copies copies;
  Status destroyed = end_qp(qp, owner, copies);
  await_end_of(copies);
  return destroyed;
}

Status Nic::end_qp(core::QueuePair* qp, Owner* owner, Copies& copies) {
  Guard guard(*this);
  if (!lane_.engine().groups_of(*qp).empty()) {
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
  lane_.acknowledge_received();
  lane_.engine().destroy_qp(qp, lane_.time());
  revoke_copies_through(qpn, peer, copies);
  if (has_path && !is_abandoned()) lane_.datapath().all->close_path(path);
  return {};
}

Result<wire::Gid> Nic::source_for(const core::AddressVector& address) const {
  const wire::Gid source = gids_.at(address.sgid_index);
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

Result<wire::PathId> Nic::open_path(const core::AddressVector& address, const wire::Gid& source,
                                    wire::Qpn peer) {
  auto path = lane_.datapath().all->open_path(
      {.source = source,
       .destination = address.destination,
       .peer = peer,
       .traffic_class = address.traffic_class,
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
  if (try_allocating([&] { lane_.engine().state().paths.open(path); })) return path;
  lane_.datapath().all->close_path(path);
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
  auto path = open_path(address, source.value(), wire::Qpn());
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
  lane_.engine().state().paths.release(handle.path);
}

Status Nic::attach(core::QueuePair& qp, const wire::Gid& group) {
  Guard guard(*this);
  const bool joined = lane_.engine().has_members(group);
  Status attached = lane_.engine().attach(qp, group);
  if (!attached.ok() || joined) return attached;
  attached = lane_.datapath().wire->join(group);
  if (!attached.ok()) {
    const Status undone = lane_.engine().detach(qp, group);
    VERBENA_CHECK(undone.ok());
  }
  return attached;
}

Status Nic::detach(core::QueuePair& qp, const wire::Gid& group) {
  Guard guard(*this);
  Status detached = lane_.engine().detach(qp, group);
  if (detached.ok() && !lane_.engine().has_members(group)) lane_.datapath().wire->leave(group);
  return detached;
}

Status Nic::modify_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask) {
  if ((mask & core::qp_attr::kAddressVector) != 0) share_memory_with_peer(qp, attr, mask);
  Copies copies;
  Status changed = change_qp(qp, attr, mask, copies);
  await_end_of(copies);
  const bool to_rtr = (mask & core::qp_attr::kState) != 0 && attr.state == core::QpState::Rtr;
  if (changed.ok() && to_rtr && !shares_memory(qp)) await_steering();
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
  for (bool reached = false; !reached && runtime::now() < until;) {
    {
      Guard guard(*this);
      const wire::Qpn peer =
          (mask & core::qp_attr::kDestQpn) != 0 ? attr.dest_qpn : qp.attributes().dest_qpn;
      if (is_abandoned() || lane_.datapath().local == nullptr) return;
      datapath::SelectingDatapath& local = *lane_.datapath().local;
      reached = local.reach(destination, peer, runtime::now());
      lane_.make_progress();
      if (!reached) local.attend();
      lane_.log_notice();
    }
    const timespec pause{0, 20'000};
    if (!reached) nanosleep(&pause, nullptr);
  }
}

bool Nic::shares_memory(const core::QueuePair& qp) {
  Guard guard(*this);
  const LaneDatapath& datapath = lane_.datapath();
  return datapath.local != nullptr && datapath.local->packet_bytes(qp.attributes().path) != 0;
}

// Opens the path for the address vector in `attr`, which gets the path's properties.
Status Nic::set_path(const core::QueuePair& qp, core::QpAttributes& attr, uint32_t mask) {
  auto source = source_for(attr.address);
  if (!source.ok()) return source.error();
  if (attr.address.destination.is_multicast()) {
    return Error{EINVAL, "the destination GID is not an address of a host"};
  }
  const wire::Qpn peer =
      (mask & core::qp_attr::kDestQpn) != 0 ? attr.dest_qpn : qp.attributes().dest_qpn;
  auto path = open_path(attr.address, source.value(), peer);
  if (!path.ok()) return path.error();
  attr.path = path.value();
  attr.source_gid = source.value();
  attr.path_packet_bytes = lane_.datapath().all->packet_bytes(path.value());
  return {};
}

// A datagram may be sent to any address of the device before the device sends from that address.
Status Nic::receive_datagrams() {
  if (!takes_datagrams_) lane_.datapath().all->report_ip_headers();
  takes_datagrams_ = true;
  return listen_everywhere();
}

Status Nic::change_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask, Copies& copies) {
  Guard guard(*this);
  Status checked = qp.check_modify(attr, mask);
  if (!checked.ok()) return checked;
  const bool had_path = qp.peer() != nullptr;
  const wire::PathId old_path = qp.attributes().path;
  const bool sets_address = (mask & core::qp_attr::kAddressVector) != 0;
  if (sets_address) {
    Status set = set_path(qp, attr, mask);
    if (!set.ok()) return set;
  }
  const bool sets_state = (mask & core::qp_attr::kState) != 0;
  if (sets_state && attr.state == core::QpState::Rtr && qp.type() == core::QpType::Ud) {
    Status listening = receive_datagrams();
    if (!listening.ok()) return listening;
  }
  const bool ends =
      sets_state && (attr.state == core::QpState::Reset || attr.state == core::QpState::Error);
  if (ends) lane_.acknowledge_received();
  const wire::Qpn peer_before = qp.attributes().dest_qpn;
  if (!try_allocating([&] { lane_.engine().modify_qp(qp, attr, mask, lane_.time()); })) {
    if (sets_address) lane_.datapath().all->close_path(attr.path);
    return Error{ENOMEM, "out of memory"};
  }
  revoke_copies_through(qp.qpn(), peer_before, copies);
  const bool to_reset = qp.state() == core::QpState::Reset;
  if (had_path && (sets_address || to_reset)) lane_.datapath().all->close_path(old_path);
  lane_.transmit(lane_.time());
  return {};
}

core::SharedReceiveQueue* Nic::create_srq(const core::SrqConfig& config, Owner* owner) {
  Guard guard(*this);
  core::SharedReceiveQueue* srq = lane_.engine().create_srq(config);
  srq->owner = owner;
  return srq;
}

Status Nic::modify_srq(core::SharedReceiveQueue& srq, std::optional<uint32_t> max_wr,
                       std::optional<uint32_t> limit) {
  Guard guard(*this);
  const Status modified = srq.modify(max_wr, limit);
  lane_.deliver();
  return modified;
}

void Nic::destroy_srq(core::SharedReceiveQueue* srq) {
  Guard guard(*this);
  lane_.engine().destroy_srq(srq);
}

void Nic::forget_cq(core::CompletionQueue* cq) {
  Guard guard(*this);
  lane_.late_events().forget(cq);
  std::erase(lane_.engine().state().notified, cq);
  std::erase_if(lane_.engine().state().events,
                [&](const core::AsyncEvent& e) { return e.cq == cq; });
}

}  // namespace verbena::runtime
