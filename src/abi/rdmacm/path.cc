// Path records, address vectors and queue pair attributes, computed as in the kernel's rdma_cm.
#include "abi/rdmacm/path.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "abi/rdmacm/errors.h"

namespace verbena::rdmacm {
namespace {

constexpr uint8_t kPacketLifeTime = 16;  // 0.27 s, the kernel's value for Ethernet
constexpr uint8_t kHopLimit = 64;
constexpr uint8_t kExactly = 2;  // a path record's selector
constexpr Error kNoConnection{EINVAL, "the identifier is not connected, nor about to be"};

ibv_mtu public_mtu(wire::Mtu mtu) {
  return static_cast<ibv_mtu>(std::countr_zero(static_cast<uint32_t>(mtu)) - 7);
}

ibv_sa_path_rec blank_path() {
  ibv_sa_path_rec path{};
  path.hop_limit = kHopLimit;
  path.reversible = 1;
  path.numb_path = 1;
  path.pkey = htons(kDefaultPkey);
  path.mtu_selector = path.rate_selector = path.packet_life_time_selector = kExactly;
  return path;
}

// The rate of a port's width and speed, in the encoding of a path record.
uint8_t rate_of(const ibv_port_attr& port) {
  static constexpr struct {
    uint8_t code;
    int lanes;
  } kWidths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}};
  static constexpr struct {
    uint8_t code;
    int mbps;
  } kSpeeds[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
                 {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
  int lanes = 1;
  int mbps = 2500;
  for (const auto& width : kWidths) {
    if (width.code == port.active_width) lanes = width.lanes;
  }
  for (const auto& speed : kSpeeds) {
    if (speed.code == port.active_speed) mbps = speed.mbps;
  }
  return static_cast<uint8_t>(mbps_to_ibv_rate(lanes * mbps));
}

// The ACK timeout of a queue pair: twice the packet lifetime plus the peer's delay, computed as in
// the kernel.
uint8_t ack_timeout(uint8_t peer_delay, uint8_t packet_life_time) {
  int timeout = packet_life_time + 1;
  if (timeout >= peer_delay) {
    timeout += peer_delay >= timeout - 1 ? 1 : 0;
  } else {
    timeout = peer_delay + (timeout >= peer_delay - 1 ? 1 : 0);
  }
  return static_cast<uint8_t>(std::min(timeout, 31));
}

uint8_t ack_timeout(const Id& id, const cm::ConnectionInfo& info) {
  if (id.ack_timeout) return *id.ack_timeout;
  if (!info.active || info.ack_timeout == 0) return info.ack_timeout;
  return ack_timeout(info.target_ack_delay, static_cast<uint8_t>(info.ack_timeout - 1));
}

ibv_ah_attr address_vector(const Id& id, const cm::ConnectionInfo& info) {
  ibv_ah_attr av{};
  av.is_global = 1;
  av.port_num = kPort;
  av.grh.dgid = to_public(info.addresses.peer_gid);
  av.grh.flow_label = info.flow_label;
  av.grh.sgid_index = id.gid_index;
  av.grh.hop_limit = info.hop_limit;
  av.grh.traffic_class = info.traffic_class;
  av.sl = static_cast<uint8_t>(info.traffic_class >> 5);
  return av;
}

int fill_init(const Id& id, const cm::ConnectionInfo* info, ibv_qp_attr& attr) {
  attr.pkey_index = 0;
  attr.port_num = kPort;
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (id.is_ud()) {
    attr.qkey = id.qkey;
    return mask | IBV_QP_QKEY;
  }
  attr.qp_access_flags = 0;
  if (info != nullptr) {
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (info->responder_resources != 0) {
      attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    }
  }
  return mask | IBV_QP_ACCESS_FLAGS;
}

int fill_rtr(const Id& id, const cm::ConnectionInfo& info, ibv_qp_attr& attr) {
  attr.ah_attr = address_vector(id, info);
  attr.path_mtu = public_mtu(info.mtu);
  attr.dest_qp_num = info.remote_qpn.value();
  attr.rq_psn = id.psn;
  const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (id.qp_type != IBV_QPT_RC && id.qp_type != IBV_QPT_XRC_RECV) return mask;
  attr.max_dest_rd_atomic = info.responder_resources;
  attr.min_rnr_timer = 0;  // 655 ms, as documented
  return mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

int fill_rts(const Id& id, const cm::ConnectionInfo& info, ibv_qp_attr& attr) {
  attr.sq_psn = info.sq_psn.value();
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (id.qp_type == IBV_QPT_UC) return mask;
  attr.timeout = ack_timeout(id, info);
  mask |= IBV_QP_TIMEOUT;
  if (id.qp_type == IBV_QPT_XRC_RECV) return mask;
  attr.retry_cnt = info.retry_count;
  attr.rnr_retry = info.rnr_retry_count;
  attr.max_rd_atomic = info.initiator_depth;
  return mask | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
}

}  // namespace

Result<ibv_sa_path_rec> path_to_destination(const Id& id) {
  ibv_port_attr port{};
  if (const int code = ibv_query_port(id.verbs, kPort, &port); code != 0) {
    return Error{code, "cannot query the device's port"};
  }
  ibv_sa_path_rec path = blank_path();
  path.sgid = to_public(id.source.gid);
  path.dgid = to_public(id.destination.gid);
  path.traffic_class = id.tos.value_or(0);
  path.sl = static_cast<uint8_t>(path.traffic_class >> 5);
  path.mtu = static_cast<uint8_t>(port.active_mtu);
  path.rate = rate_of(port);
  path.packet_life_time = kPacketLifeTime;
  if (id.ack_timeout && *id.ack_timeout > 0) {
    path.packet_life_time = static_cast<uint8_t>(*id.ack_timeout - 1);
  }
  return path;
}

ibv_sa_path_rec path_of(const cm::ConnectionInfo& info) {
  ibv_sa_path_rec path = blank_path();
  path.sgid = to_public(info.addresses.local_gid);
  path.dgid = to_public(info.addresses.peer_gid);
  path.flow_label = htonl(info.flow_label);
  path.hop_limit = info.hop_limit;
  path.traffic_class = info.traffic_class;
  path.sl = static_cast<uint8_t>(info.traffic_class >> 5);
  path.mtu = static_cast<uint8_t>(public_mtu(info.mtu));
  path.packet_life_time = static_cast<uint8_t>(info.ack_timeout > 0 ? info.ack_timeout - 1 : 0);
  return path;
}

ibv_ah_attr address_vector(const Id& id) {
  ibv_ah_attr av{};
  av.is_global = 1;
  av.port_num = kPort;
  av.grh.dgid = to_public(id.destination.gid);
  av.grh.sgid_index = id.gid_index;
  av.grh.hop_limit = kHopLimit;
  av.grh.traffic_class = id.tos.value_or(0);
  av.sl = static_cast<uint8_t>(av.grh.traffic_class >> 5);
  return av;
}

Status set_qkey(Id& id, uint32_t wanted) {
  if (id.qkey == 0) {
    id.qkey = wanted != 0 ? wanted : RDMA_UDP_QKEY;
  } else if (wanted != 0 && wanted != id.qkey) {
    return Error{EINVAL, "the queue key differs from the one chosen before"};
  }
  return {};
}

Status fill_qp_attributes(const Id& id, ibv_qp_attr& attr, int& mask) {
  const uint32_t exchange = id.exchange;
  if (exchange == 0 || id.is_ud()) {
    mask = fill_init(id, nullptr, attr);
    return {};
  }
  Result<cm::ConnectionInfo> found = id.device->manager->info(exchange);
  if (!found.ok()) return kNoConnection;
  const cm::ConnectionInfo& info = found.value();
  switch (attr.qp_state) {
    case IBV_QPS_INIT:
      mask = fill_init(id, &info, attr);
      return {};
    case IBV_QPS_RTR:
    case IBV_QPS_RTS:
      if (info.remote_qpn.value() == 0) return kNoConnection;
      mask = attr.qp_state == IBV_QPS_RTR ? fill_rtr(id, info, attr) : fill_rts(id, info, attr);
      return {};
    default:
      return Error{EINVAL, "attributes exist for INIT, RTR and RTS only"};
  }
}

Status make_ready(Id& id, const cm::ConnectionInfo& info, uint8_t responder_resources,
                  uint8_t initiator_depth) {
  if (id.qp == nullptr) return {};
  ibv_qp_attr attr{};
  fill_init(id, &info, attr);
  attr.qp_state = IBV_QPS_RTR;
  int mask = fill_rtr(id, info, attr) | IBV_QP_ACCESS_FLAGS;
  attr.max_dest_rd_atomic = responder_resources;
  if (const int code = ibv_modify_qp(id.qp, &attr, mask); code != 0) {
    return Error{code, "the queue pair cannot become ready to receive"};
  }
  attr.qp_state = IBV_QPS_RTS;
  mask = fill_rts(id, info, attr);
  attr.max_rd_atomic = initiator_depth;
  return verbs_status(ibv_modify_qp(id.qp, &attr, mask),
                      "the queue pair cannot become ready to send");
}

Status bring_to_error(Id& id) {
  if (id.qp == nullptr) return {};
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  return verbs_status(ibv_modify_qp(id.qp, &attr, IBV_QP_STATE),
                      "the queue pair cannot be brought to the error state");
}

}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT int rdma_init_qp_attr(rdma_cm_id* id, ibv_qp_attr* qp_attr, int* qp_attr_mask) {
  return outcome_of("rdma_init_qp_attr", [&]() -> Status {
    Id& ours = *from(id);
    if (belongs_to_parent(ours)) return kForked;
    if (ours.device == nullptr) return kNotBound;
    if (ours.is_ud()) {
      const Status chosen = set_qkey(ours, 0);
      if (!chosen.ok()) return chosen;
    }
    return fill_qp_attributes(ours, *qp_attr, *qp_attr_mask);
  });
}

}  // extern "C"
