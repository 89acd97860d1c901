// ibv_query_device: the capabilities of this NIC. Every limit is enforced or guaranteed.
#include <endian.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/limits.h"
#include "abi/verbs/objects.h"
#include "runtime/config.h"

#ifndef VERBENA_VERSION
#define VERBENA_VERSION ""
#endif

namespace verbena::abi {
namespace {

// 4.096 us * 2^15 = 134 ms: the time in which a busy machine schedules the process to send an ACK.
constexpr uint8_t kAckDelay = 15;

void fill(Context* context, ibv_device_attr& a) {
  const runtime::DeviceInfo& device = context->nic->device();
  a = {};
  std::snprintf(a.fw_ver, sizeof a.fw_ver, "verbena %s", VERBENA_VERSION);
  a.node_guid = htobe64(device.guid);
  a.sys_image_guid = a.node_guid;
  a.max_mr_size = UINT64_MAX;
  a.page_size_cap = ~uint64_t{4095};
  a.vendor_id = kVendorId;
  a.vendor_part_id = runtime::config().vendor_part_id;
  a.max_qp = kMaxQps;
  a.max_qp_wr = kMaxQpWr;
  a.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT |
                       IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |
                       IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW |
                       IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  a.max_sge = core::kMaxSges;
  a.max_sge_rd = core::kMaxSges;
  a.max_cq = kMaxCqs;
  a.max_cqe = kMaxCqe;
  a.max_mr = kMaxRegions;
  a.max_mw = kMaxWindows;
  a.max_pd = kMaxPds;
  a.max_ah = kMaxAhs;
  a.max_mcast_grp = core::kMaxGroups;
  a.max_mcast_qp_attach = core::kMaxQpsPerGroup;
  a.max_total_mcast_qp_attach = core::kMaxGroups * core::kMaxQpsPerGroup;
  a.max_qp_rd_atom = core::kMaxReadAtomic;
  a.max_qp_init_rd_atom = core::kMaxReadAtomic;
  a.max_res_rd_atom = kMaxQps * core::kMaxReadAtomic;
  a.atomic_cap = IBV_ATOMIC_GLOB;  // the CPU executes atomics, so they are atomic towards it too
  a.max_srq = kMaxSrqs;
  a.max_srq_wr = kMaxSrqWr;
  a.max_srq_sge = core::kMaxSges;
  a.max_pkeys = 1;
  a.local_ca_ack_delay = kAckDelay;
  a.phys_port_cnt = 1;
}

void fill(Context* context, ibv_device_attr_ex& a) {
  a = {};
  fill(context, a.orig_attr);
  a.device_cap_flags_ex = a.orig_attr.device_cap_flags;
  a.device_cap_flags_ex |= kDeviceFlushGlobal | kDeviceFlushPersistent | kDeviceAtomicWrite;
  // Memory is always accessed through the page tables; on-demand regions are just not faulted in.
  constexpr uint32_t kDatagrams =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
  constexpr uint32_t kUnreliable = kDatagrams | IBV_ODP_SUPPORT_WRITE;
  constexpr uint32_t kReliable = kUnreliable | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC |
                                 kOdpSupportFlush | kOdpSupportAtomicWrite;
  a.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
  a.odp_caps.per_transport_caps.rc_odp_caps = kReliable;
  a.odp_caps.per_transport_caps.uc_odp_caps = kUnreliable;
  a.odp_caps.per_transport_caps.ud_odp_caps = kDatagrams;
  a.xrc_odp_caps = kReliable;
  a.max_dm_size = kMaxDeviceMemory;
  a.phys_port_cnt_ex = 1;
  // Completion timestamps are CLOCK_MONOTONIC in nanoseconds.
  a.completion_timestamp_mask = UINT64_MAX;
  a.hca_core_clock = 1'000'000;  // kHz
  a.packet_pacing_caps = {.qp_rate_limit_min = core::kMinRateKbps,
                          .qp_rate_limit_max = core::kMaxRateKbps,
                          .supported_qpts = 1u << IBV_QPT_RC | 1u << IBV_QPT_UC | 1u << IBV_QPT_UD |
                                            1u << IBV_QPT_XRC_SEND};
}

}  // namespace

// The clock of the completion timestamps.
int query_rt_values(ibv_context*, ibv_values_ex* values) {
  return status_of("ibv_query_rt_values_ex", [&]() -> Status {
    if ((values->comp_mask & ~uint32_t{IBV_VALUES_MASK_RAW_CLOCK}) != 0) {
      return Error{EINVAL, "comp_mask has a bit that does not exist"};
    }
    // The device's clock ticks, all in the second field, as programs expect.
    values->raw_clock = {.tv_sec = 0, .tv_nsec = runtime::now().ns};
    return {};
  });
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t attr_bytes) {
  return status_of("ibv_query_device_ex", [&]() -> Status {
    if (input != nullptr && input->comp_mask != 0) {
      return Error{EINVAL, "comp_mask has a bit that does not exist"};
    }
    if (attr_bytes < sizeof(ibv_device_attr)) return Error{EINVAL, "the structure is too small"};
    // The caller's structure may be from another release: copy at most its size, and zero the rest.
    ibv_device_attr_ex ours{};
    fill(from(context), ours);
    std::memset(static_cast<void*>(attr), 0, attr_bytes);
    std::memcpy(static_cast<void*>(attr), &ours, std::min(attr_bytes, sizeof ours));
    return {};
  });
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  return status_of("ibv_query_device", [&]() -> Status {
    fill(from(context), *attr);
    return {};
  });
}

}  // extern "C"
