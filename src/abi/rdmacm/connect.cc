// Connecting and disconnecting: what the program asks for, put into the agent's words.
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
constexpr Error kNotConnected{EINVAL, "the identifier has no connection to speak about"};

std::span<const std::byte> bytes(const void* data, size_t size) {
  return {static_cast<const std::byte*>(data), data != nullptr ? size : 0};
}

// What the address information brought, then the program's own.
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

// What the agent tells of the exchange is the identifier's.
Status follow(Id& id, Result<uint32_t> exchange) {
  if (!exchange.ok()) return exchange.error();
  id.device->route_exchange(exchange.value(), id);
  return {};
}

// The agent keeps nothing of it that is the identifier's.
Status unfollow(Id& id, uint32_t exchange, const Status& answered) {
  if (answered.ok()) {
    id.device->forget_exchange(exchange, id);
    id.exchange = 0;
  }
  return answered;
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
  return follow(id, id.device->manager->connect(p));
}

Status ask_for_service(Id& id, const rdma_conn_param* param) {
  const std::vector<std::byte> data = private_data_of(id, param);
  cm::SidrParameters p;
  p.addresses = addresses_of(id);
  p.traffic_class = id.route.path_rec->traffic_class;
  p.private_data = data;
  return follow(id, id.device->manager->resolve_sidr(p));
}

// What was asked for, cut down to what the device can do, unless the program knows better.
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
  const Status sent = id.is_ud() ? ask_for_service(id, param) : send_request(id, param);
  if (!sent.ok()) id.state = State::RouteResolved;
  return sent;
}

Status answer_sidr(Id& id, const cm::SidrAnswer& answer) {
  const uint32_t exchange = id.exchange;
  return unfollow(id, exchange, id.device->manager->answer_sidr(exchange, answer));
}

Status reject(Id& id, cm::RejectReason reason, std::span<const std::byte> data) {
  if (is_dead(id)) return kForked;
  const uint32_t exchange = id.exchange;
  if (exchange == 0) return kNotConnected;
  if (id.is_ud()) {
    cm::SidrAnswer answer;
    answer.status = cm::SidrStatus::Reject;
    answer.private_data = data;
    return answer_sidr(id, answer);
  }
  return unfollow(id, exchange, id.device->manager->reject(exchange, reason, {}, data));
}

// An answer that could not be given: the peer is told so, rather than left to wait.
Status refuse_after(Id& id, const Status& failed) {
  (void)bring_to_error(id);
  (void)reject(id, cm::RejectReason::Consumer, {});
  return failed;
}

Status answer_service(Id& id, const rdma_conn_param* param) {
  const Status settled = settle_qkey(id, 0);
  if (!settled.ok()) return refuse_after(id, settled);
  cm::SidrAnswer answer;
  answer.qpn = qpn_of(id, param);
  answer.qkey = id.qkey;
  if (param != nullptr) answer.private_data = bytes(param->private_data, param->private_data_len);
  const Status answered = answer_sidr(id, answer);
  return answered.ok() ? answered : refuse_after(id, answered);
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
  return id.is_ud() ? answer_service(id, param) : accept_connection(id, param);
}

Status disconnect(Id& id) {
  if (is_dead(id)) return kForked;
  if (id.device == nullptr) return kNotBound;
  // First of all, whether it is connected or not: programs wait for what is flushed then.
  const Status stopped = bring_to_error(id);
  if (!stopped.ok()) return stopped;
  if (!id.exchanged) return kNotConnected;
  const Status alive = check_alive(id);
  if (!alive.ok()) return alive;  // there is nobody to tell
  // That the peer was first, or that it was never established, is no error.
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
    return Error{EINVAL, "only IBV_EVENT_COMM_EST tells the connection anything"};
  }
  return id.device->manager->notify_established(exchange);
}

Status establish(Id& id) {
  const Status alive = check_alive(id);
  if (!alive.ok()) return alive;
  if (id.qp != nullptr) {
    return Error{EINVAL, "the identifier has a queue pair: it is established by itself"};
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
  const bool datagrams = from(id)->is_ud();  // nothing follows
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
  if (over && from(id->channel)->empty()) return 0;  // nothing more to wait for
  return complete(ours);
}

}  // extern "C"
