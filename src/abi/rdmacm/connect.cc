// Connecting and disconnecting: translates the program's calls to the connection manager's.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "abi/rdmacm/ece.h"
#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/id.h"
#include "abi/rdmacm/path.h"
#include "abi/verbs/c_enum.h"

namespace verbena::rdmacm {
namespace {

constexpr Error kWrongState{EINVAL, "the identifier is not in a state that allows this"};
constexpr Error kNotConnected{EINVAL, "the identifier has no connection"};

std::span<const std::byte> bytes(const void* data, size_t size) {
  return {static_cast<const std::byte*>(data), data != nullptr ? size : 0};
}

// The private data of the address information, then the program's own.
std::vector<std::byte> private_data_of(const Id& id, const rdma_conn_param* param) {
  std::vector<std::byte> data = id.connect_data;
  if (param != nullptr) {
    const auto own = bytes(param->private_data, param->private_data_len);
    data.insert(data.end(), own.begin(), own.end());
  }
  return data;
}

Status check_parameters(const Id& id, const rdma_conn_param* param) {
  if (id.is_ud()) return {};
  if (id.qp == nullptr && param == nullptr) {
    return Error{EINVAL, "without a queue pair of the identifier's own, conn_param must name one"};
  }
  if (param == nullptr || id.ps != RDMA_PS_TCP) return {};
  if (param->responder_resources != RDMA_MAX_RESP_RES &&
      param->responder_resources > id.device->max_responder_resources) {
    return Error{EINVAL, "responder_resources is larger than the device's max_qp_rd_atom"};
  }
  if (param->initiator_depth != RDMA_MAX_INIT_DEPTH &&
      param->initiator_depth > id.device->max_initiator_depth) {
    return Error{EINVAL, "initiator_depth is larger than the device's max_qp_init_rd_atom"};
  }
  return {};
}

wire::Qpn qpn_of(const Id& id, const rdma_conn_param* param) {
  if (id.qp != nullptr) return wire::Qpn(id.qp->qp_num);
  return wire::Qpn(param != nullptr ? param->qp_num : 0);
}

bool uses_srq(const Id& id, const rdma_conn_param* param) {
  if (id.qp != nullptr) return id.qp->srq != nullptr;
  return param != nullptr && param->srq != 0;
}

cm::QpKind kind_of(const Id& id) {
  switch (id.qp_type) {
    case IBV_QPT_UC:
      return cm::QpKind::Uc;
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      return cm::QpKind::Xrc;
    default:
      return cm::QpKind::Rc;
  }
}

wire::Mtu mtu_of(uint8_t code) {
  return static_cast<wire::Mtu>(128u << std::clamp<uint8_t>(code, 1, 5));
}

cm::Addresses addresses_of(const Id& id) {
  cm::Addresses addresses;
  addresses.local_gid = addresses.local_ip = id.source.gid;
  addresses.peer_gid = addresses.peer_ip = id.destination.gid;
  addresses.local_port = id.source.port;
  addresses.peer_port = id.destination.port;
  addresses.service_id = cm::service_id(id.space(), id.destination.port);
  return addresses;
}

// Routes the events of the exchange to the identifier.
Status route_events(Id& id, Result<uint32_t> exchange) {
  if (!exchange.ok()) return exchange.error();
  id.device->route_exchange(exchange.value(), id);
  return {};
}

// Ends the routing of events if the call that ended the exchange succeeded.
Status end_exchange(Id& id, uint32_t exchange, const Status& ended) {
  if (ended.ok()) {
    id.device->remove_exchange(exchange, id);
    id.exchange = 0;
  }
  return ended;
}

Status send_request(Id& id, const rdma_conn_param* param) {
  const std::vector<std::byte> data = private_data_of(id, param);
  const ibv_sa_path_rec& path = *id.route.path_rec;
  cm::ConnectParameters p;
  p.addresses = addresses_of(id);
  p.qp_kind = kind_of(id);
  p.qpn = qpn_of(id, param);
  p.starting_psn = wire::Psn(id.psn);
  p.responder_resources = id.responder_resources;
  p.initiator_depth = id.initiator_depth;
  p.srq = uses_srq(id, param);
  if (param != nullptr) {
    p.retry_count = std::min<uint8_t>(param->retry_count, 7);
    p.rnr_retry_count = std::min<uint8_t>(param->rnr_retry_count, 7);
    p.flow_control = param->flow_control != 0;
  }
  p.mtu = mtu_of(path.mtu);
  p.flow_label = ntohl(path.flow_label);
  p.traffic_class = path.traffic_class;
  p.hop_limit = path.hop_limit;
  p.ack_timeout = static_cast<uint8_t>(std::min(path.packet_life_time + 1, 31));
  p.ece = {id.local_ece.vendor_id, id.local_ece.options};
  p.private_data = data;
  return route_events(id, id.device->manager->connect(p));
}

Status resolve_service(Id& id, const rdma_conn_param* param) {
  const std::vector<std::byte> data = private_data_of(id, param);
  cm::SidrParameters p;
  p.addresses = addresses_of(id);
  p.traffic_class = id.route.path_rec->traffic_class;
  p.private_data = data;
  return route_events(id, id.device->manager->resolve_sidr(p));
}

// Uses the program's values, or limits the requested ones to those of the device.
void choose_depths(Id& id, const rdma_conn_param* param) {
  const bool own_depth = param != nullptr && param->initiator_depth != RDMA_MAX_INIT_DEPTH;
  const bool own_resources = param != nullptr && param->responder_resources != RDMA_MAX_RESP_RES;
  id.initiator_depth = own_depth ? param->initiator_depth
                                 : std::min(id.initiator_depth, id.device->max_initiator_depth);
  id.responder_resources =
      own_resources ? param->responder_resources
                    : std::min(id.responder_resources, id.device->max_responder_resources);
}

Status connect(Id& id, const rdma_conn_param* param) {
  const Status alive = check_alive(id);
  if (!alive.ok()) return alive;
  if (id.state != State::RouteResolved) return kWrongState;
  const Status checked = check_parameters(id, param);
  if (!checked.ok()) return checked;
  id.initiator_depth = RDMA_MAX_INIT_DEPTH;
  id.responder_resources = RDMA_MAX_RESP_RES;
  choose_depths(id, param);
  if (!id.enter(State::RouteResolved, State::Connect)) return kWrongState;
  const Status sent = id.is_ud() ? resolve_service(id, param) : send_request(id, param);
  if (!sent.ok()) id.state = State::RouteResolved;
  return sent;
}

Status reply_to_service(Id& id, const cm::SidrReply& reply) {
  const uint32_t exchange = id.exchange;
  return end_exchange(id, exchange, id.device->manager->reply_sidr(exchange, reply));
}

Status reject(Id& id, cm::RejectReason reason, std::span<const std::byte> data) {
  if (belongs_to_parent(id)) return kForked;
  const uint32_t exchange = id.exchange;
  if (exchange == 0) return kNotConnected;
  if (id.is_ud()) {
    cm::SidrReply reply;
    reply.status = cm::SidrStatus::Reject;
    reply.private_data = data;
    return reply_to_service(id, reply);
  }
  return end_exchange(id, exchange, id.device->manager->reject(exchange, reason, {}, data));
}

// Called when accepting fails: rejects the request, so that the peer need not wait for a timeout.
Status refuse_after(Id& id, const Status& failed) {
  (void)bring_to_error(id);
  (void)reject(id, cm::RejectReason::Consumer, {});
  return failed;
}

Status accept_service(Id& id, const rdma_conn_param* param) {
  const Status chosen = set_qkey(id, 0);
  if (!chosen.ok()) return refuse_after(id, chosen);
  cm::SidrReply reply;
  reply.qpn = qpn_of(id, param);
  reply.qkey = id.qkey;
  if (param != nullptr) reply.private_data = bytes(param->private_data, param->private_data_len);
  const Status replied = reply_to_service(id, reply);
  return replied.ok() ? replied : refuse_after(id, replied);
}

Status accept_connection(Id& id, const rdma_conn_param* param) {
  const uint32_t exchange = id.exchange;
  Result<cm::ConnectionInfo> info = id.device->manager->info(exchange);
  if (!info.ok()) return kNotConnected;
  choose_depths(id, param);
  Status status = make_ready(id, info.value(), id.responder_resources, id.initiator_depth);
  if (!status.ok()) return status;
  cm::AcceptParameters p;
  p.qpn = qpn_of(id, param);
  p.starting_psn = wire::Psn(id.psn);
  p.responder_resources = id.responder_resources;
  p.initiator_depth = id.initiator_depth;
  p.srq = uses_srq(id, param);
  if (param != nullptr) {
    p.rnr_retry_count = std::min<uint8_t>(param->rnr_retry_count, 7);
    p.flow_control = param->flow_control != 0;
    p.private_data = bytes(param->private_data, param->private_data_len);
  }
  p.ece = {id.remote_ece.vendor_id, id.local_ece.options};
  status = id.device->manager->accept(exchange, p);
  return status.ok() ? status : refuse_after(id, status);
}

Status accept(Id& id, const rdma_conn_param* param) {
  const Status alive = check_alive(id);
  if (!alive.ok()) return alive;
  if (id.state != State::Connect || id.exchange == 0) return kWrongState;
  const Status checked = check_parameters(id, param);
  if (!checked.ok()) return checked;
  return id.is_ud() ? accept_service(id, param) : accept_connection(id, param);
}

Status disconnect(Id& id) {
  if (belongs_to_parent(id)) return kForked;
  if (id.device == nullptr) return kNotBound;
  // This is the first step, connected or not: programs wait for the flushed work requests.
  const Status stopped = bring_to_error(id);
  if (!stopped.ok()) return stopped;
  if (!id.exchanged) return kNotConnected;
  const Status alive = check_alive(id);
  if (!alive.ok()) return alive;  // there is no peer to notify
  // It is no error if the peer disconnected first, or if the connection was never established.
  if (const uint32_t exchange = id.exchange; exchange != 0 && !id.is_ud()) {
    (void)id.device->manager->disconnect(exchange, {});
  }
  return {};
}

Status notify(Id& id, unsigned event) {
  const Status alive = check_alive(id);
  if (!alive.ok()) return alive;
  const uint32_t exchange = id.exchange;
  if (exchange == 0 || id.is_ud()) return kNotConnected;
  if (event != IBV_EVENT_COMM_EST) {
    return Error{EINVAL, "only IBV_EVENT_COMM_EST affects a connection"};
  }
  return id.device->manager->notify_established(exchange);
}

Status establish(Id& id) {
  const Status alive = check_alive(id);
  if (!alive.ok()) return alive;
  if (id.qp != nullptr) {
    return Error{EINVAL,
                 "the identifier has a queue pair, so its connection is established automatically"};
  }
  const uint32_t exchange = id.exchange;
  if (exchange == 0 || id.is_ud()) return kNotConnected;
  return id.device->manager->establish(exchange, {});
}

}  // namespace
}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT int rdma_connect(rdma_cm_id* id, rdma_conn_param* conn_param) {
  return start_and_complete(id, [&] {
    return outcome_of("rdma_connect",
                      [&] { return verbena::rdmacm::connect(*from(id), conn_param); });
  });
}

VERBENA_EXPORT int rdma_accept(rdma_cm_id* id, rdma_conn_param* conn_param) {
  const bool datagrams = from(id)->is_ud();  // no event follows
  const bool synchronous = from(id)->synchronous;
  const int started =
      outcome_of("rdma_accept", [&] { return verbena::rdmacm::accept(*from(id), conn_param); });
  if (started != 0 || !synchronous) return started;
  if (!datagrams) return complete(*from(id));
  if (id->event != nullptr) rdma_ack_cm_event(std::exchange(id->event, nullptr));
  return 0;
}

VERBENA_EXPORT int rdma_reject(rdma_cm_id* id, const void* private_data, uint8_t private_data_len) {
  return outcome_of("rdma_reject", [&] {
    return reject(*from(id), cm::RejectReason::Consumer, bytes(private_data, private_data_len));
  });
}

VERBENA_EXPORT int rdma_reject_ece(rdma_cm_id* id, const void* private_data,
                                   uint8_t private_data_len) {
  return outcome_of("rdma_reject_ece", [&] {
    return reject(*from(id), cm::RejectReason::VendorOptionNotSupported,
                  bytes(private_data, private_data_len));
  });
}

VERBENA_EXPORT int rdma_notify(rdma_cm_id* id, ibv_event_type event) {
  return outcome_of("rdma_notify",
                    [&] { return notify(*from(id), verbena::abi::number_of(event)); });
}

VERBENA_EXPORT int rdma_establish(rdma_cm_id* id) {
  return outcome_of("rdma_establish", [&] { return establish(*from(id)); });
}

VERBENA_EXPORT int rdma_disconnect(rdma_cm_id* id) {
  Id& ours = *from(id);
  const bool waits = ours.synchronous && !ours.is_ud();
  const int started = outcome_of("rdma_disconnect", [&] { return disconnect(ours); });
  if (started != 0 || !waits) return started;
  const bool over = ours.exchange == 0 || ours.state != State::Connect;
  if (over && from(id->channel)->empty()) return 0;  // no further event follows
  return complete(ours);
}

}  // extern "C"
