// ReceiveSource: where a receiving side gets its buffers, be it a queue of its own or one that is
// shared. At most one receive is held at a time: taken with the first packet that needs it, kept
// until it completes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/qp_common.h"
#include "core/work_queue.h"

namespace verbena::core {

class ReceiveSource {
 public:
  // With qp.srq set, receives come from there and `max_wr` does not matter.
  ReceiveSource(QpCommon& qp, uint32_t max_wr, uint32_t max_sges);

  // To the queue pair's own queue.
  Status post(const ReceiveRequest& request);

  // Whether take() would find nothing.
  bool empty() const;
  bool has_receive() const { return has_receive_; }
  // Not empty, and none held.
  void consume();

  // Of the one that take() would find; not empty.
  uint32_t next_length() const {
    return srq_ != nullptr ? srq_->at(srq_->first()).length : own_.at(own_.head()).length;
  }

  // Of the receive that is held.
  uint32_t length() const { return wqe().length; }
  // Writes `bytes` at `offset` of its buffers; the caller has checked that they are long enough.
  // False if an lkey does not grant it.
  bool scatter(uint32_t offset, std::span<const std::byte> bytes, bool ends_message);
  // Writes a whole message into the buffers of the one that take() would find. False: they are too
  // short, nobody posted any, or an lkey does not grant it.
  bool place_whole(std::span<const std::byte> message);
  // Completes it: fill(completion) says what is not as in a new one; wr_id is filled in here.
  template <typename Fill>
  void complete(Fill fill) {
    VERBENA_CHECK(has_receive_);
    const uint64_t wr_id = wqe().wr_id;
    if (qp_.counters != nullptr) [[unlikely]] {
      Completion counted;  // the queue may have no room for it
      fill(counted);
      qp_.counters->add(OperationCounters::kReceive, counted.status, counted.byte_count);
    }
    qp_.complete(finish(), [&](Completion& c) {
      c.wr_id = wr_id;
      fill(c);
    });
  }

  // The queue pair is in error: completes what it holds and what lies in its own queue. What others
  // share stays; the application learns that this queue pair will take no more of it.
  void flush();
  // Forgets all without completions; a shared queue gets room again.
  void reset();

  // XRC: each message says which queue it uses. None is held.
  void choose(SharedReceiveQueue* srq) { srq_ = srq; }
  SharedReceiveQueue* chosen() const { return srq_; }
  // The queue goes away, and what was held of it.
  void forget(const SharedReceiveQueue* srq);

 private:
  // It is no longer held. Where it completes.
  CompletionQueue* finish();
  const ReceiveWqe& wqe() const { return srq_ != nullptr ? srq_->at(slot_) : own_.at(own_.head()); }

  QpCommon& qp_;
  ReceiveQueue own_;
  SharedReceiveQueue* srq_;
  SharedReceiveQueue::Slot slot_ = 0;  // held of srq_
  bool has_receive_ = false;           // of the own queue it is the front
};

}  // namespace verbena::core
