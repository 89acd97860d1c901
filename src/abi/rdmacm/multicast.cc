// Multicast groups: an IP group is a GID; its members are the queue pairs attached to it.
#include "abi/rdmacm/multicast.h"

#include <algorithm>
#include <utility>

#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/path.h"

namespace verbena::rdmacm {
namespace {

Status join(Id& id, const sockaddr* group, bool send_only, void* context) {
  if (belongs_to_parent(id)) return kForked;
  Result<IpAddress> address = read_address(group);
  if (!address.ok()) return address.error();
  if (!address.value().is_multicast()) return Error{EINVAL, "not a multicast address"};
  if (id.device == nullptr) return kNotBound;
  if (!id.is_ud()) return Error{EINVAL, "only datagram identifiers join groups"};
  if (id.state != State::AddressBound && id.state != State::AddressResolved) {
    return Error{EINVAL, "the identifier must be bound or resolved, and not yet connected"};
  }
  const Status chosen = set_qkey(id, 0);
  if (!chosen.ok()) return chosen;
  auto joined = std::make_unique<Multicast>();
  joined->id = &id;
  joined->context = context;
  joined->mgid = to_public(address.value().gid);
  joined->address = address.value();
  joined->send_only = send_only;
  auto event = std::make_unique<Event>(id, RDMA_CM_EVENT_MULTICAST_JOIN);
  event->group = joined.get();
  event->param.ud.private_data = context;
  event->param.ud.ah_attr = address_vector(id);
  event->param.ud.ah_attr.grh.dgid = joined->mgid;
  event->param.ud.qp_num = wire::kMulticastQpn.value();
  event->param.ud.qkey = id.qkey;
  {
    const std::lock_guard lock(id.mutex);
    id.groups.push_back(std::move(joined));
  }
  id.post(std::move(event));
  return {};
}

std::unique_ptr<Multicast> take_group(Id& id, const IpAddress& address) {
  const std::lock_guard lock(id.mutex);
  const auto found = std::find_if(id.groups.begin(), id.groups.end(), [&](const auto& group) {
    return group->address.gid == address.gid;
  });
  if (found == id.groups.end()) return nullptr;
  std::unique_ptr<Multicast> group = std::move(*found);
  id.groups.erase(found);
  return group;
}

// Waits until the program has acknowledged the group's events.
Status leave(Id& id, const sockaddr* address) {
  if (belongs_to_parent(id)) return kForked;
  Result<IpAddress> read = read_address(address);
  if (!read.ok()) return read.error();
  const std::unique_ptr<Multicast> group = take_group(id, read.value());
  if (group == nullptr) return Error{EADDRNOTAVAIL, "the identifier is not in this group"};
  if (id.qp != nullptr && group->attached) ibv_detach_mcast(id.qp, &group->mgid, 0);
  EventList dropped;
  from(id.channel)->remove_if(dropped, [&](const Event& e) { return e.group == group.get(); });
  if (id.synchronous && id.event != nullptr && from(id.event)->group == group.get()) {
    rdma_ack_cm_event(std::exchange(id.event, nullptr));
  }
  std::unique_lock lock(id.mutex);
  const uint32_t taken = group->events_taken;
  id.acknowledged.wait(lock, [&] { return group->events_acked >= taken; });
  return {};
}

}  // namespace

void finish_joining(Event& event) {
  Id& id = *event.owner;
  Multicast& group = *event.group;
  if (id.qp == nullptr || group.send_only) return;
  const int code = ibv_attach_mcast(id.qp, &group.mgid, 0);
  if (code != 0) {
    event.set_kind(RDMA_CM_EVENT_MULTICAST_ERROR);
    event.status = -code;
  } else {
    group.attached = true;
  }
}

}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT int rdma_join_multicast(rdma_cm_id* id, sockaddr* addr, void* context) {
  return start_and_complete(id, [&] {
    return outcome_of("rdma_join_multicast", [&] { return join(*from(id), addr, false, context); });
  });
}

VERBENA_EXPORT int rdma_join_multicast_ex(rdma_cm_id* id, rdma_cm_join_mc_attr_ex* attr,
                                          void* context) {
  const auto start = [&]() -> Status {
    constexpr uint32_t kNeeded = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    if (attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED) {
      return Error{ENOTSUP, "comp_mask has a bit that does not exist"};
    }
    if ((attr->comp_mask & kNeeded) != kNeeded) {
      return Error{EINVAL, "the address and the join flags are needed"};
    }
    if (attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED) {
      return Error{EINVAL, "join_flags has a bit that does not exist"};
    }
    const bool send_only = attr->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    return join(*from(id), attr->addr, send_only, context);
  };
  return start_and_complete(id, [&] { return outcome_of("rdma_join_multicast_ex", start); });
}

VERBENA_EXPORT int rdma_leave_multicast(rdma_cm_id* id, sockaddr* addr) {
  return outcome_of("rdma_leave_multicast", [&] { return leave(*from(id), addr); });
}

}  // extern "C"
