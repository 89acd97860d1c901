// A reliable connection without rdma_cm, for programs on plain verbs: RESET, INIT, RTR, RTS.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string_view>

namespace verbena::programs {

struct Connection {
  uint32_t peer = 0;  // the peer's queue pair number; both start at PSN 0
  ibv_gid gid{};      // the peer's GID
  ibv_mtu mtu = IBV_MTU_1024;
  unsigned access = 0;
  uint8_t reads = 1;  // outstanding READs and atomics, in each direction
  uint8_t timeout = 14;
  uint8_t retries = 7;
};

// Each returns the result of ibv_modify_qp: 0 or an errno.
inline int make_ready_for_receives(ibv_qp* qp, const Connection& c) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  a.qp_access_flags = c.access;
  return ibv_modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

inline int connect(ibv_qp* qp, const Connection& c) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = c.mtu;
  a.dest_qp_num = c.peer;
  a.max_dest_rd_atomic = c.reads;
  a.min_rnr_timer = 12;
  a.ah_attr.is_global = 1;
  a.ah_attr.grh.dgid = c.gid;
  a.ah_attr.grh.hop_limit = 64;
  a.ah_attr.port_num = 1;
  const int error =
      ibv_modify_qp(qp, &a,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return error;
  a = {};
  a.qp_state = IBV_QPS_RTS;
  a.timeout = c.timeout;
  a.retry_cnt = c.retries;
  a.rnr_retry = 7;
  a.max_rd_atomic = c.reads;
  return ibv_modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

// Null if there is no device of that name.
inline ibv_context* open_device(std::string_view name) {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  ibv_context* context = nullptr;
  for (int i = 0; i < count && context == nullptr; ++i) {
    if (ibv_get_device_name(list[i]) == name) context = ibv_open_device(list[i]);
  }
  if (list != nullptr) ibv_free_device_list(list);
  return context;
}

}  // namespace verbena::programs
