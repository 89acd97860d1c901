// The completion ring.
#include "core/completion_queue.h"

#include <algorithm>
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

bool CompletionQueue::raises_event(const Completion& c, uint64_t end) {
  const bool solicited = c.solicited || c.status != WcStatus::Success;
  if (solicited) solicited_end_ = end;
  if (armed_ == Armed::No || (armed_ == Armed::Solicited && !solicited)) return false;
  announce(end);
  return true;
}

void CompletionQueue::announce(uint64_t end) {
  armed_ = Armed::No;
  announced_end_ = end;
  announced_head_ = head_.load(std::memory_order_relaxed);
}

CompletionQueue::Unpolled CompletionQueue::arm(Armed level) {
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (!events_wanted_) solicited_end_ = tail;  // was not updated until now
  events_wanted_ = true;
  armed_ = std::max(armed_, level);
  late_end_ = armed_ == Armed::Any ? tail : solicited_end_;
  const uint64_t head = head_.load(std::memory_order_acquire);
  if (late_end_ <= head) return Unpolled::None;
  const bool announced = late_end_ <= announced_end_ && head == announced_head_;
  return announced ? Unpolled::Announced : Unpolled::Unannounced;
}

bool CompletionQueue::take_late_event() {
  if (armed_ == Armed::No || late_end_ <= head_.load(std::memory_order_acquire)) return false;
  announce(tail_.load(std::memory_order_relaxed));
  return true;
}

void CompletionQueue::forget(wire::Qpn qpn) {
  // The remaining completions move towards the tail, because the slots from the tail on belong to
  // the producer.
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
