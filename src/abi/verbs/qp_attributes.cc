// Converts field by field; the engine validates the values.
#include "abi/verbs/qp_attributes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "abi/verbs/c_enum.h"

namespace verbena::abi {
namespace {

using core::QpState;
namespace bits = core::qp_attr;

static_assert(IBV_QPS_RESET == static_cast<int>(QpState::Reset));
static_assert(IBV_QPS_INIT == static_cast<int>(QpState::Init));
static_assert(IBV_QPS_RTR == static_cast<int>(QpState::Rtr));
static_assert(IBV_QPS_RTS == static_cast<int>(QpState::Rts));
static_assert(IBV_QPS_SQD == static_cast<int>(QpState::Sqd));
static_assert(IBV_QPS_SQE == static_cast<int>(QpState::Sqe));
static_assert(IBV_QPS_ERR == static_cast<int>(QpState::Error));
static_assert(IBV_QP_STATE == bits::kState);
static_assert(IBV_QP_CUR_STATE == bits::kCurState);
static_assert(IBV_QP_EN_SQD_ASYNC_NOTIFY == bits::kEnSqdAsyncNotify);
static_assert(IBV_QP_ACCESS_FLAGS == bits::kAccessFlags);
static_assert(IBV_QP_PKEY_INDEX == bits::kPkeyIndex);
static_assert(IBV_QP_PORT == bits::kPort);
static_assert(IBV_QP_QKEY == bits::kQkey);
static_assert(IBV_QP_AV == bits::kAddressVector);
static_assert(IBV_QP_PATH_MTU == bits::kPathMtu);
static_assert(IBV_QP_TIMEOUT == bits::kTimeout);
static_assert(IBV_QP_RETRY_CNT == bits::kRetryCount);
static_assert(IBV_QP_RNR_RETRY == bits::kRnrRetry);
static_assert(IBV_QP_RQ_PSN == bits::kRqPsn);
static_assert(IBV_QP_MAX_QP_RD_ATOMIC == bits::kMaxRdAtomic);
static_assert(IBV_QP_ALT_PATH == bits::kAlternatePath);
static_assert(IBV_QP_MIN_RNR_TIMER == bits::kMinRnrTimer);
static_assert(IBV_QP_SQ_PSN == bits::kSqPsn);
static_assert(IBV_QP_MAX_DEST_RD_ATOMIC == bits::kMaxDestRdAtomic);
static_assert(IBV_QP_PATH_MIG_STATE == bits::kPathMigState);
static_assert(IBV_QP_CAP == bits::kCapabilities);
static_assert(IBV_QP_DEST_QPN == bits::kDestQpn);
static_assert(IBV_QP_RATE_LIMIT == bits::kRateLimit);

// An invalid state stays invalid: a large number must not become a small one.
QpState to_core(const ibv_qp_state& state) {
  return static_cast<QpState>(std::min<unsigned>(number_of(state), IBV_QPS_UNKNOWN));
}

// IBV_MTU_256 is 1, and each next value is twice the size; 0 is an invalid MTU.
wire::Mtu to_core(const ibv_mtu& mtu) {
  const unsigned number = number_of(mtu);
  if (number < IBV_MTU_256 || number > IBV_MTU_4096) return static_cast<wire::Mtu>(0);
  return static_cast<wire::Mtu>(128u << number);
}

ibv_ah_attr to_public(const core::AddressVector& from) {
  ibv_ah_attr ah{};
  std::memcpy(ah.grh.dgid.raw, from.destination.bytes.data(), sizeof ah.grh.dgid.raw);
  ah.grh.flow_label = from.flow_label;
  ah.grh.sgid_index = from.sgid_index;
  ah.grh.hop_limit = from.hop_limit;
  ah.grh.traffic_class = from.traffic_class;
  ah.dlid = from.dlid;
  ah.sl = from.sl;
  ah.src_path_bits = from.src_path_bits;
  ah.static_rate = from.static_rate;
  ah.is_global = from.is_global ? 1 : 0;
  ah.port_num = from.port;
  return ah;
}

}  // namespace

core::AddressVector to_core(const ibv_ah_attr& ah) {
  core::AddressVector to;
  to.destination = wire::Gid::from_ipv6(ah.grh.dgid.raw);
  to.flow_label = ah.grh.flow_label;
  to.dlid = ah.dlid;
  to.sgid_index = ah.grh.sgid_index;
  to.hop_limit = ah.grh.hop_limit;
  to.traffic_class = ah.grh.traffic_class;
  to.sl = ah.sl;
  to.src_path_bits = ah.src_path_bits;
  to.static_rate = ah.static_rate;
  to.port = ah.port_num;
  to.is_global = ah.is_global != 0;
  return to;
}

ibv_mtu to_public(wire::Mtu mtu) {
  return static_cast<ibv_mtu>(std::bit_width(wire::bytes_of(mtu)) - 8);
}

core::QpAttributes to_core(const ibv_qp_attr& attr) {
  core::QpAttributes to;
  to.state = to_core(attr.qp_state);
  to.current_state = to_core(attr.cur_qp_state);
  to.sqd_notify = attr.en_sqd_async_notify != 0;
  to.access = attr.qp_access_flags;
  to.pkey_index = attr.pkey_index;
  to.port = attr.port_num;
  to.qkey = attr.qkey;
  to.address = to_core(attr.ah_attr);
  to.path_mtu = to_core(attr.path_mtu);
  to.timeout = attr.timeout;
  to.retry_count = attr.retry_cnt;
  to.rnr_retry = attr.rnr_retry;
  to.min_rnr_timer = attr.min_rnr_timer;
  to.rq_psn = attr.rq_psn;
  to.sq_psn = attr.sq_psn;
  to.max_read_atomic = attr.max_rd_atomic;
  to.max_dest_read_atomic = attr.max_dest_rd_atomic;
  to.dest_qpn = wire::Qpn(attr.dest_qp_num);
  to.rate_limit = attr.rate_limit;
  return to;
}

ibv_qp_attr to_public(const core::QpAttributes& attr, bool draining) {
  ibv_qp_attr to{};
  to.qp_state = static_cast<ibv_qp_state>(attr.state);
  to.cur_qp_state = static_cast<ibv_qp_state>(attr.current_state);
  to.path_mtu = to_public(attr.path_mtu);
  to.path_mig_state = IBV_MIG_MIGRATED;
  to.qkey = attr.qkey;
  to.rq_psn = attr.rq_psn;
  to.sq_psn = attr.sq_psn;
  to.dest_qp_num = attr.dest_qpn.value();
  to.qp_access_flags = attr.access;
  to.ah_attr = to_public(attr.address);
  to.pkey_index = attr.pkey_index;
  to.en_sqd_async_notify = attr.sqd_notify ? 1 : 0;
  to.sq_draining = draining ? 1 : 0;
  to.max_rd_atomic = static_cast<uint8_t>(attr.max_read_atomic);
  to.max_dest_rd_atomic = static_cast<uint8_t>(attr.max_dest_read_atomic);
  to.min_rnr_timer = attr.min_rnr_timer;
  to.port_num = attr.port;
  to.timeout = attr.timeout;
  to.retry_cnt = attr.retry_count;
  to.rnr_retry = attr.rnr_retry;
  to.rate_limit = attr.rate_limit;
  return to;
}

}  // namespace verbena::abi
