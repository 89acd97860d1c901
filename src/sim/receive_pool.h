// ReceivePool: posted receives of a queue pair or of a shared receive queue, and their buffers.
// Each completes once, in the order in which the queue pair consumed them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "sim/scatter_gather.h"
#include "sim/world.h"

namespace verbena::sim {

struct PoolShape {
  uint32_t depth = 16;
  uint32_t bytes = 1024;  // of each
  uint32_t sges = 4;
};

struct Receive {
  uint64_t wr_id = 0;
  int slot = 0;
  std::vector<core::Sge> sges;
};

class ReceivePool {
 public:
  static constexpr std::byte kUntouched{0xC3};

  ReceivePool(World& world, Host& host, const PoolShape& shape, uint32_t number = 0);

  // Sets the receive queue. Call one of the two first.
  void serve(core::QueuePair& qp) { qp_ = &qp; }
  void serve(core::SharedReceiveQueue& srq) { srq_ = &srq; }
  core::SharedReceiveQueue* srq() const { return srq_; }

  // Posts until the queue is full. Returns the error, or an empty text.
  std::string fill();
  bool posted(uint64_t wr_id) const { return wr_id >> 32 == number_; }
  // Removes the receive of `completion`. Returns the error, or an empty text.
  std::string complete(const core::Completion& completion, Receive* receive);
  // The first `length` bytes of its buffer.
  Bytes read(const Receive& receive, uint32_t length) const {
    return gather(region_, receive.sges, length);
  }
  const PoolShape& shape() const { return shape_; }
  size_t waiting() const { return waiting_.size(); }
  // All its queue pairs are in ERR: the engine must report the same number of remaining receives.
  std::string check_stopped() const;

 private:
  World& world_;
  Host& host_;
  PoolShape shape_;
  uint32_t number_;
  Region region_;
  core::QueuePair* qp_ = nullptr;
  core::SharedReceiveQueue* srq_ = nullptr;
  std::deque<Receive> waiting_;  // in the order of posting
  std::vector<int> free_;
  std::map<uint32_t, uint64_t> last_of_;  // shared: the last completion of each queue pair
  uint64_t next_ = 1;
};

}  // namespace verbena::sim
