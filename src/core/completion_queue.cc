// The completion ring.
#include "core/completion_queue.h"

#include <bit>
#include <utility>

namespace verbena::core {

CompletionQueue::CompletionQueue(uint32_t capacity, Ring ring)
    : capacity_(capacity), mask_(slots_for(capacity) - 1), ring_(std::move(ring)) {
  if (!ring_) ring_ = make_ring(capacity);
}

uint32_t CompletionQueue::slots_for(uint32_t capacity) { return std::bit_ceil(capacity); }

CompletionQueue::Ring CompletionQueue::make_ring(uint32_t capacity) {
  return Ring(new Completion[slots_for(capacity)]);
}

bool CompletionQueue::push(const Completion& completion, bool* notify) {
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head_.load(std::memory_order_acquire) >= capacity_) {
    overrun_ = !ignore_overrun_;
    return false;
  }
  ring_[tail & mask_] = completion;
  // Sequentially consistent with arm(): either this sees the arming, or the application's poll
  // after arming sees the completion.
  tail_.store(tail + 1, std::memory_order_seq_cst);
  Armed armed = armed_.load(std::memory_order_seq_cst);
  const bool wakes_solicited = completion.solicited || completion.status != WcStatus::Success;
  while (armed == Armed::Any || (armed == Armed::Solicited && wakes_solicited)) {
    if (armed_.compare_exchange_weak(armed, Armed::No)) {
      *notify = true;
      break;
    }
  }
  return true;
}

void CompletionQueue::forget(wire::Qpn qpn) {
  // What stays moves towards the tail, whose slots beyond are the producer's; then the head
  // follows.
  const uint64_t head = head_.load(std::memory_order_relaxed);
  const uint64_t tail = tail_.load(std::memory_order_acquire);
  uint64_t kept = tail;
  for (uint64_t i = tail; i-- != head;) {
    if (ring_[i & mask_].qpn == qpn) continue;
    --kept;
    if (kept != i) ring_[kept & mask_] = ring_[i & mask_];
  }
  if (kept != head) head_.store(kept, std::memory_order_release);
}

void CompletionQueue::arm(Armed level) {
  Armed now = armed_.load(std::memory_order_relaxed);
  while (now < level && !armed_.compare_exchange_weak(now, level)) {
  }
  // A full barrier even when nothing changed: the poll that follows must not move before it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool CompletionQueue::resize(uint32_t capacity, Ring& ring) {
  const uint32_t waiting = size();
  if (waiting > capacity) return false;
  const uint32_t mask = slots_for(capacity) - 1;
  const uint64_t head = head_.load();
  for (uint64_t i = head; i < head + waiting; ++i) ring[i & mask] = ring_[i & mask_];
  std::swap(ring_, ring);
  mask_ = mask;
  capacity_ = capacity;
  return true;
}

}  // namespace verbena::core
