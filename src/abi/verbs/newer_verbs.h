// Additions to <infiniband/verbs.h> after rdma-core 44, up to IBVERBS_1.18: values and layouts that
// programs built against newer headers expect. They have names of our own in the namespace, so that
// a build against newer headers has no conflicts.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::abi {

// ibv_access_flags, ibv_wr_opcode, ibv_wc_opcode, ibv_qp_create_send_ops_flags
inline constexpr unsigned kAccessFlushGlobal = 1u << 8;
inline constexpr unsigned kAccessFlushPersistent = 1u << 9;
inline constexpr unsigned kWrFlush = 14;
inline constexpr unsigned kWcFlush = 8;
inline constexpr uint64_t kQpExWithFlush = 1u << 11;

// ibv_placement_type and ibv_selectivity_level, the last two arguments of ibv_wr_flush
inline constexpr uint8_t kPlacementGlobal = 1;
inline constexpr uint8_t kPlacementPersistent = 2;
inline constexpr uint8_t kSelectRange = 0;
inline constexpr uint8_t kSelectRegion = 1;

// ibv_odp_transport_cap_bits
inline constexpr uint32_t kOdpSupportFlush = 1u << 6;
inline constexpr uint32_t kOdpSupportAtomicWrite = 1u << 7;

// ibv_device_cap_flags that exist in device_cap_flags_ex only
inline constexpr uint64_t kDeviceFlushGlobal = uint64_t{1} << 38;
inline constexpr uint64_t kDeviceFlushPersistent = uint64_t{1} << 39;
inline constexpr uint64_t kDeviceAtomicWrite = uint64_t{1} << 40;

// ibv_parent_domain_init_attr_mask: buffers may be in memory that a confidential guest shares with
// its host. Devices without IBV_DEVICE_CC_DMA_BOUNCE, such as ours, use plain memory.
inline constexpr uint32_t kParentAllowsUnprotected = 1u << 2;

// Part of some structures. The size depends on the architecture: 40 on x86-64, 48 on arm64.
inline constexpr size_t kMutexBytes = sizeof(pthread_mutex_t);

// ibv_qp_ex with the slot of ibv_wr_flush. All our queue pairs have this size.
struct NewerQpEx : ibv_qp_ex {
  void (*wr_flush)(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, size_t length,
                   uint8_t placement, uint8_t selectivity);
};
static_assert(sizeof(ibv_qp_ex) == 312 + kMutexBytes && sizeof(NewerQpEx) == 320 + kMutexBytes);

struct NewerPortAttr : ibv_port_attr {
  uint32_t active_speed_ex;  // as active_speed, for rates that exceed its eight bits
};
static_assert(sizeof(ibv_port_attr) == 52 && sizeof(NewerPortAttr) == 56);

// A hint about the placement of a device's writes. It has no effect for a CPU that writes itself.
struct DmaHandle {
  ibv_context* context;  // the public part
  std::atomic<int> regions{0};
};

struct DmaHandleInit {
  uint32_t comp_mask;
  uint32_t cpu_id;
  uint8_t processing_hint;
  uint8_t memory_type;
};
inline constexpr uint32_t kDmaHandleCpu = 1;
inline constexpr uint32_t kDmaHandleHint = 2;
inline constexpr uint32_t kDmaHandleMemoryType = 4;
static_assert(sizeof(DmaHandleInit) == 12);

// Completion counters: ibv_comp_cntr and the structures of its calls.
struct PublicCounter {
  ibv_context* context;
  uint32_t handle;
};

struct CounterInit {
  uint32_t comp_mask;
  uint32_t type;
  uint32_t flags;
};
inline constexpr uint32_t kCountWorkRequests = 0;
inline constexpr uint32_t kCountBytes = 1;

struct CounterAttach {
  uint32_t comp_mask;
  uint32_t operations;
};
inline constexpr uint32_t kCountSends = 1;
inline constexpr uint32_t kCountReceives = 2;
inline constexpr uint32_t kCountReads = 4;
inline constexpr uint32_t kCountRemoteReads = 8;
inline constexpr uint32_t kCountWrites = 16;
inline constexpr uint32_t kCountRemoteWrites = 32;

struct CounterCapabilities {
  uint64_t max_value;
  uint32_t max_counters;
  uint32_t operations;
};
static_assert(sizeof(PublicCounter) == 16 && sizeof(CounterInit) == 12 &&
              sizeof(CounterAttach) == 8 && sizeof(CounterCapabilities) == 16);

struct Buffer;  // opaque to programs: ibv_buf, see buffer.cc

struct RegionInit {  // ibv_mr_init_attr
  size_t length;
  int access;
  uint64_t comp_mask;
  uint64_t iova;
  void* addr;
  int fd;
  uint64_t fd_offset;
  DmaHandle* dmah;
  Buffer* buffer;
};
inline constexpr uint64_t kRegionIova = 1;
inline constexpr uint64_t kRegionAddress = 2;
inline constexpr uint64_t kRegionFd = 4;
inline constexpr uint64_t kRegionFdOffset = 8;
inline constexpr uint64_t kRegionDmaHandle = 16;
inline constexpr uint64_t kRegionBuffer = 32;
static_assert(sizeof(RegionInit) == 72 && offsetof(RegionInit, access) == 8 &&
              offsetof(RegionInit, comp_mask) == 16 && offsetof(RegionInit, addr) == 32 &&
              offsetof(RegionInit, fd) == 40 && offsetof(RegionInit, fd_offset) == 48 &&
              offsetof(RegionInit, buffer) == 64);

// verbs_context grows towards lower addresses: these slots directly precede the first one in
// <infiniband/verbs.h> of rdma-core 44.
struct NewerOps {
  void (*free_buf)(Buffer* buffer);
  void* (*alloc_buf)(ibv_pd* pd, size_t size, Buffer** buffer);
  int (*dm_export_dmabuf_fd)(ibv_dm* dm);
  ibv_mr* (*reg_mr_ex)(ibv_pd* pd, RegionInit* init);
  int (*dealloc_dmah)(DmaHandle* handle);
  DmaHandle* (*alloc_dmah)(ibv_context* context, DmaHandleInit* init);
};
inline constexpr size_t kNewerContextBytes = 656 + kMutexBytes;
static_assert(sizeof(NewerOps) + sizeof(verbs_context) == kNewerContextBytes);

}  // namespace verbena::abi
