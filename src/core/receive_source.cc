// Receives from the queue pair's own queue or from a shared one.
#include "core/receive_source.h"

#include <algorithm>

#include "core/placement.h"

namespace verbena::core {

ReceiveSource::ReceiveSource(QpCommon& qp, uint32_t max_wr, uint32_t max_sges)
    : qp_(qp), own_(qp.shares_receives() ? 0 : max_wr, max_sges, 0), srq_(qp.config.srq) {}

Status ReceiveSource::post(const ReceiveRequest& r) {
  if (qp_.shares_receives()) {
    return Error{EINVAL, "the QP takes its receives from an SRQ: use ibv_post_srq_recv"};
  }
  if (own_.full()) return Error{ENOMEM, "the receive queue is full"};
  if (r.sges.size() > own_.max_sges()) return Error{EINVAL, "more SGEs than max_recv_sge"};
  uint64_t length = 0;
  for (const Sge& sge : r.sges) length += sge.length;
  if (length > kMaxMessageBytes) return Error{EINVAL, "a receive buffer is at most 2 GiB"};
  ReceiveWqe& wqe = own_.slot();
  wqe.wr_id = r.wr_id;
  wqe.length = static_cast<uint32_t>(length);
  wqe.sge_count = static_cast<uint16_t>(r.sges.size());
  std::ranges::copy(r.sges, own_.sge_slots(own_.tail()).begin());
  own_.push();
  return {};
}

bool ReceiveSource::empty() const {
  return srq_ != nullptr ? srq_->empty() : own_.size() == (has_receive_ ? 1u : 0u);
}

bool ReceiveSource::consume(size_t bytes) {
  VERBENA_CHECK(!has_receive_);
  if (srq_ != nullptr) {
    const SharedReceiveQueue::Consumed consumed = srq_->consume(bytes);
    if (!consumed) return false;
    slot_ = consumed.slot;
    if (consumed.limit_reached) [[unlikely]]
      qp_.engine.raise({.kind = EventKind::SrqLimitReached, .srq = srq_});
  } else if (own_.empty() || own_.front().length < bytes) {
    return false;
  }
  has_receive_ = true;
  return true;
}

bool ReceiveSource::scatter(uint32_t offset, std::span<const std::byte> bytes, bool ends_message) {
  const MemoryView& memory = qp_.engine.memory;
  // A shared receive was posted under the protection domain of its queue.
  return srq_ != nullptr
             ? core::scatter(memory, srq_->config().pd, srq_->sges(slot_), offset, bytes,
                             ends_message)
             : core::scatter(memory, qp_.pd, own_.sges(own_.head()), offset, bytes, ends_message);
}

bool ReceiveSource::scatter(uint32_t offset, const wire::PacketRun& run) {
  const MemoryView& memory = qp_.engine.memory;
  return srq_ != nullptr ? core::scatter(memory, srq_->config().pd, srq_->sges(slot_), offset, run)
                         : core::scatter(memory, qp_.pd, own_.sges(own_.head()), offset, run);
}

bool ReceiveSource::consume_whole(std::span<const std::byte> message) {
  if (!consume(message.size())) return false;
  if (scatter(0, message, true)) [[likely]]
    return true;
  if (srq_ != nullptr) srq_->give_back(slot_);
  has_receive_ = false;
  return false;
}

CompletionQueue* ReceiveSource::finish() {
  has_receive_ = false;
  if (srq_ == nullptr) {
    own_.pop();
    return qp_.config.receive_cq;
  }
  srq_->release(slot_);
  return srq_->config().cq != nullptr ? srq_->config().cq : qp_.config.receive_cq;
}

void ReceiveSource::flush() {
  const auto flushed = [](Completion& c) {
    c.status = WcStatus::Flushed;
    c.opcode = WcOpcode::Receive;
  };
  if (has_receive_) complete(flushed);
  if (qp_.shares_receives()) {
    qp_.engine.raise({.kind = EventKind::LastWqeReached, .qp = qp_.self});
    return;
  }
  while (!own_.empty()) {
    (void)consume();
    complete(flushed);
  }
}

void ReceiveSource::reset() {
  if (has_receive_ && srq_ != nullptr) srq_->release(slot_);
  has_receive_ = false;
  own_.clear();
}

void ReceiveSource::forget(const SharedReceiveQueue* srq) {
  if (srq_ != srq) return;
  srq_ = nullptr;
  has_receive_ = false;
}

}  // namespace verbena::core
