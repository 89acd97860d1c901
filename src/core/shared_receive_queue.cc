// Slots in two linked lists: the free ones, and the posted ones in order.
#include "core/shared_receive_queue.h"

#include <algorithm>

namespace verbena::core {

SharedReceiveQueue::SharedReceiveQueue(uint32_t number, const SrqConfig& config)
    : number_(number), config_(config) {
  make_slots(config.max_wr);
}

void SharedReceiveQueue::make_slots(uint32_t count) {
  const auto before = static_cast<uint32_t>(wqes_.size());
  if (count <= before) return;
  sges_.resize(size_t{count} * config_.max_sges);
  next_.resize(count, kNone);
  wqes_.resize(count);
  for (Slot slot = count; slot-- > before;) {
    next_[slot] = free_;
    free_ = slot;
  }
}

uint32_t SharedReceiveQueue::limit() const {
  const SpinLock::Guard guard(lock_);
  return limit_;
}

uint32_t SharedReceiveQueue::posted() const {
  const SpinLock::Guard guard(lock_);
  return posted_;
}

Status SharedReceiveQueue::post(const ReceiveRequest& r) {
  const SpinLock::Guard guard(lock_);
  if (posted_ + in_use_ >= config_.max_wr) return Error{ENOMEM, "the shared receive queue is full"};
  if (r.sges.size() > config_.max_sges) {
    return Error{EINVAL, "more SGEs than the shared receive queue's max_sge"};
  }
  uint64_t length = 0;
  for (const Sge& sge : r.sges) length += sge.length;
  if (length > kMaxMessageBytes) return Error{EINVAL, "a receive buffer is at most 2 GiB"};

  const Slot slot = free_;
  free_ = next_[slot];
  wqes_[slot] = {r.wr_id, static_cast<uint32_t>(length), static_cast<uint16_t>(r.sges.size())};
  std::ranges::copy(r.sges,
                    sges_.begin() + static_cast<ptrdiff_t>(size_t{slot} * config_.max_sges));
  next_[slot] = kNone;
  (first_ == kNone ? first_ : next_[last_]) = slot;
  last_ = slot;
  ++posted_;
  return {};
}

SharedReceiveQueue::Modified SharedReceiveQueue::modify(std::optional<uint32_t> max_wr,
                                                        std::optional<uint32_t> limit) {
  const SpinLock::Guard guard(lock_);
  const uint32_t capacity = max_wr.value_or(config_.max_wr);
  if (capacity == 0 || capacity < posted_ + in_use_) {
    return {Error{EINVAL, "more receives are posted than the new max_wr holds"}};
  }
  if (limit.value_or(limit_) > capacity) return {Error{EINVAL, "srq_limit is larger than max_wr"}};
  make_slots(capacity);
  config_.max_wr = capacity;
  if (limit) limit_ = *limit;
  return {{}, reaches_limit()};
}

SharedReceiveQueue::Consumed SharedReceiveQueue::consume(size_t bytes) {
  const SpinLock::Guard guard(lock_);
  if (first_ == kNone || wqes_[first_].length < bytes) return {};
  const Slot slot = first_;
  first_ = next_[slot];
  --posted_;
  ++in_use_;
  return {slot, reaches_limit()};
}

void SharedReceiveQueue::release(Slot slot) {
  const SpinLock::Guard guard(lock_);
  next_[slot] = free_;
  free_ = slot;
  --in_use_;
}

void SharedReceiveQueue::give_back(Slot slot) {
  const SpinLock::Guard guard(lock_);
  next_[slot] = first_;
  if (first_ == kNone) last_ = slot;
  first_ = slot;
  ++posted_;
  --in_use_;
}

bool SharedReceiveQueue::reaches_limit() {
  if (posted_ >= limit_) return false;
  limit_ = 0;
  return true;
}

}  // namespace verbena::core
