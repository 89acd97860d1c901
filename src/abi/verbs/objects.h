// The objects behind verbs' public pointers. Each begins with the public structure; only from()
// converts the public pointer.
//
// Lifetime: a context lives until it is closed and its last object is destroyed. An object counts
// its users and cannot be destroyed (EBUSY) while there are any. Device objects live as long as the
// process.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi/verbs/newer_verbs.h"
#include "abi/verbs/session.h"
#include "abi/verbs/wr_builders.h"
#include "base/spin_lock.h"
#include "core/completion_queue.h"
#include "core/queue_pair.h"
#include "os/unique_fd.h"
#include "runtime/devices.h"
#include "runtime/event_channel.h"
#include "runtime/nic.h"

// The version script exports these symbols. All others are hidden.
#define VERBENA_EXPORT __attribute__((visibility("default")))

namespace verbena::abi {

// libmlx5, libefa and similar libraries read the driver's part of *any* device: the bytes after
// ibv_device must exist and be zero ("not mine").
struct DeviceHead {
  ibv_device device;
  std::array<std::byte, 104> driver_part;
};
inline constexpr size_t kVerbsDeviceBytes = 712;  // of rdma-core's private verbs_device
static_assert(sizeof(DeviceHead) >= kVerbsDeviceBytes);

struct Device : DeviceHead {
  runtime::DeviceInfo info;  // of the last discovery; under the device table's lock
  std::atomic<int> pds{0};
  std::atomic<int> cqs{0};
  std::atomic<int> ahs{0};
  std::atomic<int> srqs{0};
  std::atomic<int> completion_counters{0};
  std::atomic<uint64_t> device_memory{0};  // bytes allocated
};

struct CompletionChannel;
struct Dm;
struct Pd;

// The newer slots directly precede the older ones, as newer headers expect.
struct Context : NewerOps, verbs_context {
  Device* device = nullptr;
  std::shared_ptr<runtime::Nic> nic;
  std::unique_ptr<runtime::EventChannel> async;
  std::vector<CompletionChannel*>
      channels;                           // for the child of a fork; under the lock of context.cc
  os::UniqueFd command;                   // owns cmd_fd
  ino_t command_file = 0;                 // its inode: imported contexts have the same one
  std::unordered_map<uint32_t, Pd*> pds;  // by handle, for importing; under the same lock
  std::unordered_map<uint32_t, Dm*> dms;  // likewise
  std::atomic<int> users{1};              // the program's own pointer, and one per object
  std::atomic<uint32_t> last_cq{0};       // the handle of the newest completion queue
  std::atomic<uint32_t> last_counter{0};  // the handle of the newest completion counter

  void add_user() { users.fetch_add(1, std::memory_order_relaxed); }
  void drop_user() {
    if (users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

struct CompletionChannel : ibv_comp_channel {
  std::unique_ptr<runtime::EventChannel> events;
  runtime::LaneIndices lanes;  // of its completion queues, past ones included
};

struct Td : ibv_td {
  std::atomic<int> users{0};
};

struct Pd : ibv_pd {
  // Parent and imported domains stand for another domain and have its number.
  enum class Kind : uint8_t { Own, Parent, Imported };

  uint32_t id = 0;            // the engine's number of the domain; never reused
  std::atomic<int> users{1};  // the program's own pointer, and one per object of the domain
  Kind kind = Kind::Own;
  Pd* stands_for = nullptr;  // null after ibv_unimport_pd: remaining objects need only the number

  // Parent domains.
  Td* td = nullptr;  // one thread at a time uses its objects
  decltype(ibv_parent_domain_init_attr::alloc) alloc = nullptr;
  decltype(ibv_parent_domain_init_attr::free) free = nullptr;
  void* pd_context = nullptr;

  bool is_parent() const { return kind == Kind::Parent; }
  bool has_objects() const { return users.load() > 1; }
  void add_user() { users.fetch_add(1); }
  void drop_user();
  // Memory of the program's allocator; null: there is none, or it requests the default.
  void* allocate(size_t bytes, size_t alignment);
  void deallocate(void* memory) { free(this, pd_context, memory, 0); }
};

// Memory that a program accesses only by copying, and peers as any region. Host memory takes the
// device's place: a sealed memory file, so that it can be exported as a descriptor.
struct Dm : ibv_dm {
  std::byte* memory = nullptr;
  size_t length = 0;  // as requested
  size_t mapped = 0;
  int fd = -1;
  Dm* stands_for = nullptr;   // imported: the owner of memory and descriptor
  std::atomic<int> users{1};  // the program's own pointer, regions on it, and its imports

  bool has_users() const { return users.load() > 1; }
  void add_user() { users.fetch_add(1); }
  void drop_user();
};

struct Mr : ibv_mr {
  enum class Kind : uint8_t { Memory, Null, DeviceMemory, DmaBuf, Buffer, Imported };
  Kind kind = Kind::Memory;
  unsigned access = 0;       // public flags, without hints
  Dm* dm = nullptr;          // DeviceMemory
  Buffer* buffer = nullptr;  // Buffer
  DmaHandle* dma_handle = nullptr;
  void* mapping = nullptr;  // DmaBuf: to be unmapped
  size_t mapping_bytes = 0;
};

struct Mw : ibv_mw {};

struct Ah : ibv_ah {
  runtime::SharedAddress handle;
};

// Ethernet has no service level. Mellanox cards report the network header of a datagram there, and
// UCX (up to 1.13 at least) drops IPv4 datagrams without it.
inline uint8_t network_type(const core::Completion& c) {
  return static_cast<uint8_t>(c.flags >> core::kWcNetworkShift);
}

// The public part is the extended structure: ibv_cq is its prefix, so one object serves both.
struct Cq : ibv_cq_ex {
  Cq(runtime::Nic& device, CompletionChannel* events, uint32_t capacity,
     core::CompletionQueue::Ring ring, bool single_threaded)
      : ibv_cq_ex(),
        nic(&device),
        lanes(device.lanes().first(), events != nullptr ? &events->lanes : nullptr),
        queue(capacity, std::move(ring)),
        session(single_threaded) {}

  runtime::Nic* nic;
  runtime::CqLanes lanes;
  SpinLock poll_lock;  // one consumer of the queue at a time
  core::CompletionQueue queue;
  runtime::Owner owner;
  std::atomic<int> users{0};
  // Events that the program has taken, counted under their channel's lock. Destroying waits for as
  // many acknowledgements.
  uint32_t completion_events_taken = 0;
  uint32_t async_events_taken = 0;

  Pd* domain = nullptr;      // the parent domain that it was created with
  Session session;           // ibv_start_poll to ibv_end_poll
  core::Completion current;  // the completion that the session reads

  ibv_cq* as_public() { return reinterpret_cast<ibv_cq*>(static_cast<ibv_cq_ex*>(this)); }
};

struct CompletionCounter : PublicCounter {
  core::CompletionCounter core;
  runtime::LaneIndices lanes;  // of the queue pairs that it was attached to
  std::atomic<int> users{0};   // one per counted operation of a queue pair
};

struct Xrcd : ibv_xrcd {
  uint32_t domain = 0;  // the engine's number of the domain; never reused
  std::atomic<int> users{0};
};

struct Srq : ibv_srq {
  Srq() : ibv_srq() {}

  runtime::Nic* nic = nullptr;
  core::SharedReceiveQueue* core = nullptr;
  runtime::Owner owner;
  Xrcd* xrcd = nullptr;  // XRC
  Cq* cq = nullptr;      // XRC
  std::atomic<int> users{0};
  uint32_t async_events_taken = 0;
};

struct Qp : NewerQpEx {
  runtime::Nic* nic = nullptr;
  runtime::Lane* lane = nullptr;
  core::QueuePair* core = nullptr;
  runtime::Owner owner;
  Xrcd* xrcd = nullptr;                // XRC receive
  std::unique_ptr<WrBuilder> builder;  // if created with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
  uint32_t async_events_taken = 0;
  core::OperationCounters counters;  // under the lane's lock
  std::array<CompletionCounter*, core::OperationCounters::kKinds> attached{};  // the same ones

  ibv_qp* as_public() { return &qp_base; }
};

inline Device* from(ibv_device* p) {
  return static_cast<Device*>(reinterpret_cast<DeviceHead*>(p));
}
inline Context* from(ibv_context* p) {
  return static_cast<Context*>(reinterpret_cast<verbs_context*>(reinterpret_cast<std::byte*>(p) -
                                                                offsetof(verbs_context, context)));
}
inline CompletionChannel* from(ibv_comp_channel* p) { return static_cast<CompletionChannel*>(p); }
inline Td* from(ibv_td* p) { return static_cast<Td*>(p); }
inline Pd* from(ibv_pd* p) { return static_cast<Pd*>(p); }
inline Mr* from(ibv_mr* p) { return static_cast<Mr*>(p); }
inline Dm* from(ibv_dm* p) { return static_cast<Dm*>(p); }
inline Mw* from(ibv_mw* p) { return static_cast<Mw*>(p); }
inline Ah* from(ibv_ah* p) { return static_cast<Ah*>(p); }
inline Cq* from(ibv_cq* p) { return static_cast<Cq*>(reinterpret_cast<ibv_cq_ex*>(p)); }
inline CompletionCounter* from(PublicCounter* p) { return static_cast<CompletionCounter*>(p); }
inline Xrcd* from(ibv_xrcd* p) { return static_cast<Xrcd*>(p); }
inline Srq* from(ibv_srq* p) { return static_cast<Srq*>(p); }
inline Qp* from(ibv_qp* p) { return static_cast<Qp*>(reinterpret_cast<ibv_qp_ex*>(p)); }

// Called when the queue pair is destroyed: releases its counters.
void detach_counters(Qp& qp);

}  // namespace verbena::abi
