// What both ends of detector readout need of verbs: the device at an address, and a queue pair that
// is walked through its states by hand. The public API alone, so that any RDMA NIC will do.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>

#include "daq/message.h"
#include "tools/owned.h"

namespace verbena::daqtool {

// The device that has `ip` among its addresses, with what is made from it once.
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

// Pages that were registered.
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

  // INIT was reached when it was made; receives are posted; now it may hear and speak.
  void connect(const VerbsDevice& device, const daq::QpInfo& peer, uint32_t own_psn, ibv_mtu mtu);

 private:
  Owned<ibv_qp, ibv_destroy_qp> qp_;
};

uint32_t bytes_of(ibv_mtu mtu);
ibv_mtu mtu_of(uint32_t bytes);  // the largest that is not larger

}  // namespace verbena::daqtool
