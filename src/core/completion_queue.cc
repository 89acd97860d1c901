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

bool CompletionQueue::disarms(const Completion& c) {
  const bool solicited = c.solicited || c.status != WcStatus::Success;
  if (armed_ == Armed::Solicited && !solicited) return false;
  armed_ = Armed::No;
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
