// Wrappers of verbs calls that turn failures into ToolError.
#include "tools/daq/verbs_device.h"

#include <arpa/inet.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "daq/board.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr uint8_t kRnrTimer = 1;  // 10 us: data should flow as soon as a receive is posted
constexpr uint8_t kTimeout = 14;  // 67 ms

ibv_gid gid_of(uint32_t ip) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xFF;
  const uint32_t network = htonl(ip);
  std::memcpy(gid.raw + 12, &network, sizeof network);
  return gid;
}

// The index of a RoCE v2 GID in a port's table; -1: not found.
int find_gid(ibv_context* context, uint8_t port, int entries, const ibv_gid& wanted) {
  for (int i = 0; i < entries; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, port, static_cast<uint32_t>(i), &entry, 0) != 0) continue;
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
        std::memcmp(entry.gid.raw, wanted.raw, sizeof wanted.raw) == 0) {
      return i;
    }
  }
  return -1;
}

void modify(ibv_qp* qp, ibv_qp_attr& attributes, int mask, const char* to) {
  errno = ibv_modify_qp(qp, &attributes, mask);
  if (errno != 0) throw ToolError(with_errno(std::string("the queue pair cannot enter ") + to));
}

}  // namespace

VerbsDevice::VerbsDevice(uint32_t address) : ip(address) {
  int count = 0;
  const Owned<ibv_device*, ibv_free_device_list> list(ibv_get_device_list(&count));
  for (int i = 0; list && i < count && !context; ++i) {
    Owned<ibv_context, ibv_close_device> candidate(ibv_open_device(list.get()[i]));
    ibv_port_attr attributes{};
    if (!candidate || ibv_query_port(candidate.get(), port, &attributes) != 0) continue;
    const int index = find_gid(candidate.get(), port, attributes.gid_tbl_len, gid_of(ip));
    if (index < 0) continue;
    name = ibv_get_device_name(list.get()[i]);
    gid_index = static_cast<uint8_t>(index);
    mtu = attributes.active_mtu;
    context = std::move(candidate);
  }
  if (!context) {
    throw ToolError("no RDMA device has the address " + daq::print_ip(ip) +
                    "; `verbena devices` lists them");
  }
  pd.reset(ibv_alloc_pd(context.get()));
  channel.reset(ibv_create_comp_channel(context.get()));
  if (!pd || !channel || ibv_query_device(context.get(), &limits) != 0) {
    throw ToolError(with_errno(name));
  }
}

Owned<ibv_cq, ibv_destroy_cq> VerbsDevice::make_cq(uint32_t entries) const {
  Owned<ibv_cq, ibv_destroy_cq> cq(
      ibv_create_cq(context.get(), static_cast<int>(entries), nullptr, channel.get(), 0));
  if (!cq) {
    throw ToolError(
        with_errno("cannot create a completion queue of " + std::to_string(entries) + " entries"));
  }
  return cq;
}

Memory::Memory(const VerbsDevice& device, size_t bytes)
    : bytes_((bytes + kPage - 1) / kPage * kPage),
      pages_(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes_))) {
  if (!pages_) throw ToolError("no memory for a buffer of " + std::to_string(bytes_) + " bytes");
  std::memset(pages_.get(), 0, bytes_);
  mr_.reset(ibv_reg_mr(device.pd.get(), pages_.get(), bytes_,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  if (!mr_) throw ToolError(with_errno("ibv_reg_mr (see `ulimit -l`)"));
}

QueuePair::QueuePair(const VerbsDevice& device, ibv_cq* cq, uint32_t sends, uint32_t receives) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.cap.max_send_wr = sends;
  wanted.cap.max_recv_wr = receives;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  wanted.qp_type = IBV_QPT_RC;
  qp_.reset(ibv_create_qp(device.pd.get(), &wanted));
  if (!qp_) throw ToolError(with_errno("ibv_create_qp"));
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = device.port;
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  modify(qp_.get(), init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
         "INIT");
}

void QueuePair::connect(const VerbsDevice& device, const daq::QpInfo& peer, uint32_t own_psn,
                        ibv_mtu mtu) {
  ibv_qp_attr rtr{};
  rtr.qp_state = IBV_QPS_RTR;
  rtr.path_mtu = mtu;
  rtr.dest_qp_num = peer.qpn;
  rtr.rq_psn = own_psn;  // a board starts with the PSN that this host sent it
  rtr.max_dest_rd_atomic = 1;
  rtr.min_rnr_timer = kRnrTimer;
  rtr.ah_attr.is_global = 1;
  rtr.ah_attr.port_num = device.port;
  rtr.ah_attr.grh.dgid = gid_of(peer.ip);
  rtr.ah_attr.grh.sgid_index = device.gid_index;
  rtr.ah_attr.grh.hop_limit = 64;
  modify(qp_.get(), rtr,
         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
         "RTR");
  ibv_qp_attr rts{};
  rts.qp_state = IBV_QPS_RTS;
  rts.sq_psn = peer.psn;
  rts.timeout = kTimeout;
  rts.retry_cnt = 7;
  rts.rnr_retry = 7;
  rts.max_rd_atomic = 1;
  modify(qp_.get(), rts,
         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
             IBV_QP_MAX_QP_RD_ATOMIC,
         "RTS");
}

uint32_t bytes_of(ibv_mtu mtu) { return 128u << mtu; }

ibv_mtu mtu_of(uint32_t bytes) {
  int mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && (256u << mtu) <= bytes) ++mtu;
  return static_cast<ibv_mtu>(mtu);
}

}  // namespace verbena::daqtool
