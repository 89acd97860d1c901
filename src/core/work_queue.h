// Work queues: fixed rings of work requests with their scatter/gather lists and inline bytes,
// allocated once when a queue pair is created. Indices never wrap. The number of slots is a power
// of two, so that the slot of an index needs no division.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>

#include "base/check.h"
#include "core/types.h"
#include "wire/psn.h"

namespace verbena::core {

// The destination of a UD message, without its address handle.
struct WqeDatagram {
  wire::PathId path{};
  wire::Qpn qpn;
  uint32_t qkey = 0;
};

// Fields that an operation does not need keep the values of an earlier one.
struct SendWqe {
  uint64_t wr_id = 0;
  SendOp op = SendOp::Send;
  uint32_t flags = 0;
  uint32_t length = 0;  // message bytes
  uint32_t immediate_or_rkey = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint32_t window_rkey = 0;
  uint32_t remote_srqn = 0;  // XRC
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  WindowBinding bind;
  FlushTarget flush;
  uint32_t packet_payload_bytes = 0;  // of each packet except the last; set with first_psn
  uint32_t packets = 0;               // the number of its PSNs; set with first_psn
  uint32_t chunk_packets = 1;         // READ: PSNs of each READ chunk; set with first_psn
  WqeDatagram datagram;
  wire::Psn first_psn{0};  // set when the cursor reaches it
  uint16_t sge_count = 0;
  bool numbered = false;  // first_psn, packet_payload_bytes and packets are set

  wire::Psn last_psn() const { return first_psn + (packets - 1); }
};

struct ReceiveWqe {
  uint64_t wr_id = 0;
  uint32_t length = 0;  // of its buffers
  uint16_t sge_count = 0;
};

// `Wqe` entries [head, tail), each with max_sges SGEs and max_inline bytes.
template <typename Wqe>
class WorkQueue {
 public:
  WorkQueue(uint32_t capacity, uint32_t max_sges, uint32_t max_inline)
      : capacity_(capacity),
        mask_(std::bit_ceil(uint64_t{capacity}) - 1),
        max_sges_(max_sges),
        max_inline_(max_inline),
        wqes_(std::make_unique<Wqe[]>(mask_ + 1)),
        sges_(std::make_unique<Sge[]>((mask_ + 1) * max_sges)),
        inline_(max_inline == 0 ? nullptr
                                : std::make_unique<std::byte[]>((mask_ + 1) * max_inline)) {}

  uint32_t capacity() const { return capacity_; }
  uint32_t max_sges() const { return max_sges_; }
  uint32_t max_inline() const { return max_inline_; }
  uint64_t head() const { return head_; }
  uint64_t tail() const { return tail_; }
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ >= capacity_; }
  uint64_t size() const { return tail_ - head_; }

  Wqe& at(uint64_t index) { return wqes_[slot_of(index)]; }
  const Wqe& at(uint64_t index) const { return wqes_[slot_of(index)]; }
  Wqe& front() { return at(head_); }
  std::span<Sge> sges(uint64_t index) {
    return {sges_.get() + slot_of(index) * max_sges_, at(index).sge_count};
  }
  std::span<Sge> sge_slots(uint64_t index) {
    return {sges_.get() + slot_of(index) * max_sges_, max_sges_};
  }
  std::byte* inline_bytes(uint64_t index) { return inline_.get() + slot_of(index) * max_inline_; }

  // The slot that push() will make part of the queue.
  Wqe& slot() { return at(tail_); }
  void push() {
    VERBENA_CHECK(!full());
    ++tail_;
  }
  void pop() {
    VERBENA_CHECK(!empty());
    ++head_;
  }
  // Removes the newest entries.
  void unpost(uint32_t count) {
    VERBENA_CHECK(count <= size());
    tail_ -= count;
  }
  void clear() { head_ = tail_; }

 private:
  uint64_t slot_of(uint64_t index) const { return index & mask_; }

  uint32_t capacity_;
  uint64_t mask_;  // the number of slots - 1
  uint32_t max_sges_;
  uint32_t max_inline_;
  std::unique_ptr<Wqe[]> wqes_;
  std::unique_ptr<Sge[]> sges_;
  std::unique_ptr<std::byte[]> inline_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
};

using SendQueue = WorkQueue<SendWqe>;
using ReceiveQueue = WorkQueue<ReceiveWqe>;

}  // namespace verbena::core
