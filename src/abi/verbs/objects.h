// The objects behind the pointers that verbs hands out: each begins with the public structure, and
// from() is the one place that gets from the public pointer to ours.
//
// Who keeps whom: a context lives until it is closed and its last object is gone; whatever an
// object refers to counts it as a user and refuses to be destroyed (EBUSY) before it. Device
// objects live as long as the process.
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
#include "abi/verbs/spin_lock.h"
#include "abi/verbs/turn.h"
#include "abi/verbs/wr_builders.h"
#include "core/completion_queue.h"
#include "core/queue_pair.h"
#include "runtime/devices.h"
#include "runtime/event_channel.h"
#include "runtime/nic.h"

// What the version script exports. Everything else in the library is hidden.
#define VERBENA_EXPORT __attribute__((visibility("default")))

namespace verbena::abi {

// libmlx5, libefa and their like look at the driver's part of *any* device they are asked about:
// the bytes behind ibv_device must exist and be zero ("not mine").
struct DeviceHead {
  ibv_device device;
  std::array<std::byte, 104> driver_part;
};
inline constexpr size_t kVerbsDeviceBytes = 712;  // of rdma-core's private verbs_device
static_assert(sizeof(DeviceHead) >= kVerbsDeviceBytes);

struct Device : DeviceHead {
  runtime::DeviceInfo info;  // as last discovered; under the device table's lock
  std::atomic<int> pds{0};
  std::atomic<int> cqs{0};
  std::atomic<int> ahs{0};
  std::atomic<int> srqs{0};
  std::atomic<int> completion_counters{0};
  std::atomic<uint64_t> device_memory{0};  // bytes given out
};

struct CompletionChannel;
struct Dm;
struct Pd;

// The newer slots lie directly in front of the older ones, as newer headers look for them.
struct Context : NewerOps, verbs_context {
  Device* device = nullptr;
  std::shared_ptr<runtime::Nic> nic;
  std::unique_ptr<runtime::EventChannel> async;
  std::vector<CompletionChannel*>
      channels;                           // under the lock of context.cc, for the child of a fork
  ino_t command_file = 0;                 // what cmd_fd leads to: imported contexts have the same
  std::unordered_map<uint32_t, Pd*> pds;  // by handle, for importing; under the same lock
  std::unordered_map<uint32_t, Dm*> dms;  // likewise
  std::atomic<int> users{1};              // the program's own pointer, and one per object
  std::atomic<uint32_t> last_cq{0};       // the handle of the newest completion queue
  std::atomic<uint32_t> last_counter{0};  // the same of completion counters

  ~Context();
  void add_user() { users.fetch_add(1, std::memory_order_relaxed); }
  void drop_user() {
    if (users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

struct CompletionChannel : ibv_comp_channel {
  std::unique_ptr<runtime::EventChannel> events;
};

struct Td : ibv_td {
  std::atomic<int> users{0};
};

struct Pd : ibv_pd {
  // Parent and imported domains stand for another, whose number they have.
  enum class Kind : uint8_t { Own, Parent, Imported };

  uint32_t id = 0;            // what the engine knows it by; never given twice
  std::atomic<int> users{1};  // the program's own pointer, and one per object of the domain
  Kind kind = Kind::Own;
  Pd* stands_for = nullptr;  // null after ibv_unimport_pd: remaining objects need only the number

  // Parent domains.
  Td* td = nullptr;  // its objects are used by one thread at a time
  decltype(ibv_parent_domain_init_attr::alloc) alloc = nullptr;
  decltype(ibv_parent_domain_init_attr::free) free = nullptr;
  void* pd_context = nullptr;

  bool is_parent() const { return kind == Kind::Parent; }
  bool has_objects() const { return users.load() > 1; }
  void add_user() { users.fetch_add(1); }
  void drop_user();
  // Memory of the program's own allocator; null: it has none, or wants the default.
  void* allocate(size_t bytes, size_t alignment);
  void give_back(void* memory) { free(this, pd_context, memory, 0); }
};

// Memory that a program reaches only by copying, and peers as they reach any region. The host
// stands in for the device: a sealed memory file, so that it can be given away as a descriptor.
struct Dm : ibv_dm {
  std::byte* memory = nullptr;
  size_t length = 0;  // as asked for
  size_t mapped = 0;
  int fd = -1;
  Dm* stands_for = nullptr;   // imported: whose memory and descriptor these are
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
  void* mapping = nullptr;  // DmaBuf: ours to unmap
  size_t mapping_bytes = 0;
};

struct Mw : ibv_mw {};

struct Ah : ibv_ah {
  runtime::SharedAddress handle;
};

// Ethernet has no service level. In its place Mellanox cards tell what network header a datagram
// came with, and UCX, up to 1.13 at least, drops datagrams over IPv4 that do not say so.
inline uint8_t network_type(const core::Completion& c) {
  return static_cast<uint8_t>(c.flags >> core::kWcNetworkShift);
}

// The public part is the larger, extended one: ibv_cq is its prefix, so one object serves both.
struct Cq : ibv_cq_ex {
  Cq(uint32_t capacity, core::CompletionQueue::Ring ring, bool single_threaded)
      : ibv_cq_ex(), queue(capacity, std::move(ring)), turn(single_threaded) {}

  runtime::Nic* nic = nullptr;
  SpinLock poll_lock;  // the queue's consumers, one at a time
  core::CompletionQueue queue;
  runtime::Owner owner;
  std::atomic<int> users{0};
  // Events the program has taken, counted under their channel's lock; destroying waits for as many
  // acknowledgements.
  uint32_t completion_events_taken = 0;
  uint32_t async_events_taken = 0;

  Pd* domain = nullptr;      // the parent domain it was made with
  Turn turn;                 // ibv_start_poll to ibv_end_poll
  core::Completion current;  // what it reads

  ibv_cq* as_public() { return reinterpret_cast<ibv_cq*>(static_cast<ibv_cq_ex*>(this)); }
};

struct CompletionCounter : PublicCounter {
  core::CompletionCounter core;
  std::atomic<int> users{0};  // one per operation of a queue pair that it counts
};

struct Xrcd : ibv_xrcd {
  uint32_t domain = 0;  // what the engine knows it by; never given twice
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
  core::QueuePair* core = nullptr;
  runtime::Owner owner;
  Xrcd* xrcd = nullptr;                // XRC receive
  std::unique_ptr<WrBuilder> builder;  // made with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
  uint32_t async_events_taken = 0;
  core::OperationCounters counters;  // under the Nic's lock
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

// The queue pair is gone: its counters may go, too.
void detach_counters(Qp& qp);

}  // namespace verbena::abi
