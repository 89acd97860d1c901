// Verbs objects of the detector readout commands: the device with a given address, registered
// memory, and a queue pair that is connected by ibv_modify_qp. Only the public API is used, so any
// RDMA NIC works.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>

#include "daq/message.h"
#include "tools/owned.h"

namespace verbena::daqtool {

inline constexpr size_t kPage = 4096;
inline constexpr uint32_t kFirstPsn = 0;  // the value that the firmware's host tools use

// The device that has the address `ip`, with its protection domain and completion channel.
struct VerbsDevice {
  explicit VerbsDevice(uint32_t ip);

  Owned<ibv_context, ibv_close_device> context;
  Owned<ibv_pd, ibv_dealloc_pd> pd;
  Owned<ibv_comp_channel, ibv_destroy_comp_channel> channel;
  std::string name;
  uint32_t ip;
  uint8_t port = 1;
  uint8_t gid_index = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  ibv_device_attr limits{};

  Owned<ibv_cq, ibv_destroy_cq> make_cq(uint32_t entries) const;
};

// Page-aligned registered memory.
class Memory {
 public:
  Memory(const VerbsDevice& device, size_t bytes);
  std::byte* data() const { return pages_.get(); }
  size_t size() const { return bytes_; }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(pages_.get()); }
  const ibv_mr& mr() const { return *mr_; }

 private:
  size_t bytes_;
  Owned<std::byte, std::free> pages_;
  Owned<ibv_mr, ibv_dereg_mr> mr_;
};

class QueuePair {
 public:
  QueuePair(const VerbsDevice& device, ibv_cq* cq, uint32_t sends, uint32_t receives);
  uint32_t number() const { return qp_->qp_num; }
  ibv_qp* get() const { return qp_.get(); }

  // Moves the queue pair from INIT, its state after construction, to RTR and RTS.
  void connect(const VerbsDevice& device, const daq::QpInfo& peer, uint32_t own_psn, ibv_mtu mtu);

 private:
  Owned<ibv_qp, ibv_destroy_qp> qp_;
};

uint32_t bytes_of(ibv_mtu mtu);
ibv_mtu mtu_of(uint32_t bytes);  // the largest MTU of at most `bytes`

}  // namespace verbena::daqtool
