// ReceiveSource: where a receiving side gets its buffers: its own receive queue or a shared one. At
// most one receive is in use at a time: from the first packet of a message until it completes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/qp_common.h"
#include "core/work_queue.h"

namespace verbena::core {

class ReceiveSource {
 public:
  // If qp.config.srq is set, receives come from there and `max_wr` has no effect.
  ReceiveSource(QpCommon& qp, uint32_t max_wr, uint32_t max_sges);

  // Posts to the queue pair's own queue.
  Status post(const ReceiveRequest& request);

  // No receive is left to consume. Queue pairs of other engines may consume a shared one before
  // this one does.
  bool empty() const;
  bool has_receive() const { return has_receive_; }
  // Begins to use the next receive; none is in use. False: there is none, or it has fewer bytes
  // than these.
  bool consume(size_t bytes = 0);

  // Of the receive in use.
  uint32_t length() const { return wqe().length; }
  // Writes `bytes` at `offset` of its buffers; the caller has checked that they are long enough.
  // False if an lkey does not grant it.
  bool scatter(uint32_t offset, std::span<const std::byte> bytes, bool ends_message);
  bool scatter(uint32_t offset, const wire::PacketRun& run);
  // Consumes a receive and writes a whole message into its buffers. False, and nothing is consumed:
  // they are too short, no receive is posted, or an lkey does not grant it.
  bool consume_whole(std::span<const std::byte> message);
  // Completes it: fill(completion) sets the fields that differ from the default, except wr_id.
  template <typename Fill>
  void complete(Fill fill) {
    VERBENA_CHECK(has_receive_);
    const uint64_t wr_id = wqe().wr_id;
    if (qp_.counters != nullptr) [[unlikely]] {
      Completion counted;  // counted even if the completion queue is full
      fill(counted);
      qp_.counters->add(OperationCounters::kReceive, counted.status, counted.byte_count);
    }
    qp_.complete(finish(), [&](Completion& c) {
      c.wr_id = wr_id;
      fill(c);
    });
  }

  // The queue pair is in error: completes the receive in use and those of its own queue. Shared
  // receives stay; an event reports that this queue pair consumes no more of them.
  void flush();
  // Drops all without completions; a shared queue gets its slot back.
  void reset();

  // XRC: each message names its queue. No receive is in use.
  void choose(SharedReceiveQueue* srq) { srq_ = srq; }
  SharedReceiveQueue* chosen() const { return srq_; }
  // The queue is destroyed, with the receive in use.
  void forget(const SharedReceiveQueue* srq);

 private:
  // Ends the use of the receive. Returns the queue for its completion.
  CompletionQueue* finish();
  const ReceiveWqe& wqe() const { return srq_ != nullptr ? srq_->at(slot_) : own_.at(own_.head()); }

  QpCommon& qp_;
  ReceiveQueue own_;
  SharedReceiveQueue* srq_;
  SharedReceiveQueue::Slot slot_ = 0;  // in use, of srq_
  bool has_receive_ = false;           // a receive is in use; of the own queue, the front
};

}  // namespace verbena::core
