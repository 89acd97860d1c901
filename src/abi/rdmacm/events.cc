// rdma_get_cm_event. The verbs calls that an event needs (queue pair state, multicast membership, a
// new identifier) are made here, on the program's thread.
#include <cstdlib>
#include <utility>

#include "abi/rdmacm/ece.h"
#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/id.h"
#include "abi/rdmacm/multicast.h"
#include "abi/rdmacm/path.h"
#include "abi/verbs/c_enum.h"
#include "os/no_cancel.h"
#include "runtime/log.h"

namespace verbena::rdmacm {
namespace {

void acknowledge(Event& event) {
  Id& owner = *event.owner;
  const std::lock_guard lock(owner.mutex);
  if (event.group != nullptr) ++event.group->events_acked;
  ++owner.events_acked;
  owner.acknowledged.notify_all();
}

void show(const cm::ConnectionInfo& info, rdma_conn_param& param) {
  param.responder_resources = info.responder_resources;
  param.initiator_depth = info.initiator_depth;
  param.flow_control = info.flow_control;
  param.rnr_retry_count = info.rnr_retry_count;
  param.srq = info.remote_srq;
  param.qp_num = info.remote_qpn.value();
}

// --- connection requests

bool same_transport(cm::QpKind requested, ibv_qp_type offered) {
  switch (requested) {
    case cm::QpKind::Rc:
      return offered == IBV_QPT_RC;
    case cm::QpKind::Uc:
      return offered == IBV_QPT_UC;
    case cm::QpKind::Xrc:
      return offered == IBV_QPT_XRC_RECV;
  }
  return false;
}

Status fill_addresses(Id& id, const cm::Addresses& addresses) {
  const Status status = id.attach(id.device);
  if (!status.ok()) return status;
  if (const auto index = id.device->gid_index(addresses.local_gid)) id.gid_index = *index;
  const uint32_t scope = id.device->interface_index;
  id.set_source(IpAddress::of(addresses.local_ip, addresses.local_port, scope));
  id.set_destination(IpAddress::of(addresses.peer_ip, addresses.peer_port, scope));
  id.route.addr.addr.ibaddr.sgid = to_public(addresses.local_gid);
  id.route.addr.addr.ibaddr.dgid = to_public(addresses.peer_gid);
  return status;
}

Status fill_connection(Id& id, Event& event) {
  Result<cm::ConnectionInfo> found = id.device->manager->info(id.exchange);
  if (!found.ok()) return found.error();  // the peer has given up meanwhile
  const cm::ConnectionInfo& info = found.value();
  if (!same_transport(info.qp_kind, id.qp_type)) {
    return Error{EINVAL, "the request is for another type of queue pair than the listener's"};
  }
  Status status = fill_addresses(id, info.addresses);
  if (status.ok()) status = id.set_path(path_of(info));
  show(info, event.param.conn);
  event.param.conn.retry_count = info.retry_count;
  id.initiator_depth = info.initiator_depth;
  id.responder_resources = info.responder_resources;
  id.remote_ece.vendor_id = info.remote_ece.vendor_id;
  id.remote_ece.options = info.remote_ece.options;
  return status;
}

Status fill_service_request(Id& id) {
  Result<cm::SidrInfo> found = id.device->manager->sidr_info(id.exchange);
  if (!found.ok()) return found.error();
  return fill_addresses(id, found.value().addresses);
}

// Gives the identifier its channel, and moves the events that it received meanwhile there.
Status give_channel(Id& id, Id& listener) {
  Channel* channel = from(listener.channel);
  if (listener.synchronous) {
    Result<Channel*> own = Channel::create(*id.library);
    if (!own.ok()) return own.error();
    channel = own.value();
    id.synchronous = true;
  }
  const std::lock_guard lock(id.mutex);
  id.channel = channel;
  channel->append(id.held);
  return {};
}

// Returns false if the request is unusable; the program does not see it.
bool take_request(Event& event) {
  Id& id = *from(event.id);
  id.request_listener = 0;
  id.context = event.owner->context;  // the current value: programs set it after they listen
  id.device->manager->request_taken(id.exchange);
  Status status = id.is_ud() ? fill_service_request(id) : fill_connection(id, event);
  if (status.ok()) status = give_channel(id, *event.owner);
  if (status.ok()) return true;
  runtime::log(runtime::LogLevel::Info, "rdma_get_cm_event: request dropped: %s",
               status.error().why);
  discard_request(&id);
  return false;
}

// --- responses to our requests

Status finish_connecting(Id& id, Event& event, uint32_t exchange) {
  Result<cm::ConnectionInfo> found = id.device->manager->info(exchange);
  if (!found.ok()) return found.error();
  const cm::ConnectionInfo& info = found.value();
  show(info, event.param.conn);
  if (id.qp == nullptr) {
    id.remote_ece.vendor_id = info.remote_ece.vendor_id;
    id.remote_ece.options = info.remote_ece.options;
    return {};
  }
  Status status = check_ece(id, info.remote_ece);
  if (status.ok()) status = make_ready(id, info, info.responder_resources, info.initiator_depth);
  if (status.ok()) status = id.device->manager->establish(exchange, {});
  return status;
}

void take_response(Event& event) {
  Id& id = *event.owner;
  const uint32_t exchange = id.exchange;
  const Status status = finish_connecting(id, event, exchange);
  if (status.ok()) {
    if (id.qp != nullptr) event.set_kind(RDMA_CM_EVENT_ESTABLISHED);
    return;
  }
  runtime::log(runtime::LogLevel::Info, "rdma_get_cm_event: connection failed: %s",
               status.error().why);
  (void)bring_to_error(id);
  if (exchange != 0) {
    (void)id.device->manager->reject(exchange, cm::RejectReason::Consumer, {}, {});
  }
  event.set_kind(RDMA_CM_EVENT_CONNECT_ERROR);
  event.status = -status.error().code;
  id.connect_failed = true;
}

void take_service_reply(Event& event) {
  Id& id = *event.owner;
  event.param.ud.ah_attr = address_vector(id);
  const Status chosen = set_qkey(id, event.param.ud.qkey);
  if (chosen.ok()) return;
  event.set_kind(RDMA_CM_EVENT_ADDR_ERROR);
  event.status = -chosen.error().code;
}

// Returns false if the program does not get the event.
bool take(Event& event) {
  Id& id = *event.owner;
  switch (event.kind()) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      return take_request(event);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      take_response(event);
      return true;
    case RDMA_CM_EVENT_ESTABLISHED:
      if (id.is_ud()) take_service_reply(event);
      return true;
    case RDMA_CM_EVENT_REJECTED:
      if (id.connect_failed) return false;  // already reported as CONNECT_ERROR
      (void)bring_to_error(id);
      return true;
    case RDMA_CM_EVENT_DISCONNECTED:
      // The queue pair is not touched: programs (rping) destroy it without the identifier.
      return !id.connect_failed;
    case RDMA_CM_EVENT_MULTICAST_JOIN:
      finish_joining(event);
      return true;
    default:
      return true;
  }
}

// Returns ENODATA if there is no event.
int take_next(Channel& channel, Channel::Wait& wait, Event** event) {
  const os::NoCancel no_cancel;
  return abi::without_exceptions([&] {
    if (belongs_to_parent(channel)) return EIO;
    for (std::unique_ptr<Event> next; channel.pop(next, wait);) {
      if (take(*next)) {
        *event = next.release();
        return 0;
      }
      acknowledge(*next);
    }
    return ENODATA;
  });
}

}  // namespace

// EAGAIN is not worth a log line.
int wait_for_event(Channel& channel, Event** event) {
  Channel::Wait wait;
  for (;;) {
    int code = take_next(channel, wait, event);
    if (code == ENODATA) {
      code = channel.sleep(wait);
      if (code == 0) continue;
    }
    if (wait.counted) channel.stop_waiting();
    if (code == 0) return 0;
    errno = code;
    return -1;
  }
}

int complete(Id& id) {
  if (!id.synchronous) return 0;
  if (id.event != nullptr) rdma_ack_cm_event(std::exchange(id.event, nullptr));
  Event* event = nullptr;
  if (wait_for_event(*from(id.channel), &event) != 0) return -1;
  id.event = event;
  if (event->kind() == RDMA_CM_EVENT_DEVICE_REMOVAL) {
    errno = ENODEV;
    return -1;
  }
  if (event->status == 0) return 0;
  errno = event->kind() == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED : std::abs(event->status);
  return -1;
}

namespace {

// By number: <rdma/rdma_cma.h> may be older than the event and lack its enumerator.
const char* event_name(unsigned number) {
  static constexpr const char* kNames[] = {"RDMA_CM_EVENT_ADDR_RESOLVED",
                                           "RDMA_CM_EVENT_ADDR_ERROR",
                                           "RDMA_CM_EVENT_ROUTE_RESOLVED",
                                           "RDMA_CM_EVENT_ROUTE_ERROR",
                                           "RDMA_CM_EVENT_CONNECT_REQUEST",
                                           "RDMA_CM_EVENT_CONNECT_RESPONSE",
                                           "RDMA_CM_EVENT_CONNECT_ERROR",
                                           "RDMA_CM_EVENT_UNREACHABLE",
                                           "RDMA_CM_EVENT_REJECTED",
                                           "RDMA_CM_EVENT_ESTABLISHED",
                                           "RDMA_CM_EVENT_DISCONNECTED",
                                           "RDMA_CM_EVENT_DEVICE_REMOVAL",
                                           "RDMA_CM_EVENT_MULTICAST_JOIN",
                                           "RDMA_CM_EVENT_MULTICAST_ERROR",
                                           "RDMA_CM_EVENT_ADDR_CHANGE",
                                           "RDMA_CM_EVENT_TIMEWAIT_EXIT",
                                           "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
                                           "RDMA_CM_EVENT_ADDRINFO_ERROR",
                                           "RDMA_CM_EVENT_USER"};
  return number < std::size(kNames) ? kNames[number] : "UNKNOWN EVENT";
}

}  // namespace
}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) {
  if (channel == nullptr || event == nullptr) {
    errno = EINVAL;
    return -1;
  }
  Event* taken = nullptr;
  if (wait_for_event(*from(channel), &taken) != 0) return -1;
  runtime::log(runtime::LogLevel::Debug, "rdma_cm: %s%s%s",
               event_name(verbena::abi::number_of(taken->event)),
               taken->status != 0 ? ", status " : "",
               taken->status != 0 ? std::to_string(taken->status).c_str() : "");
  *event = taken;
  return 0;
}

VERBENA_EXPORT int rdma_ack_cm_event(rdma_cm_event* event) {
  if (event == nullptr) {
    errno = EINVAL;
    return -1;
  }
  const std::unique_ptr<Event> ours(from(event));
  if (!belongs_to_parent(*ours->owner)) acknowledge(*ours);
  return 0;
}

VERBENA_EXPORT const char* rdma_event_str(rdma_cm_event_type event) {
  return event_name(verbena::abi::number_of(event));
}

}  // extern "C"
