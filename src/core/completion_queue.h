// CompletionQueue: a ring with one producer (the engine's owner) and one consumer (application
// threads, which serialise themselves). The two sides share only the two indices. To ask for an
// event is the producer's side, under its lock: so neither side needs more than to publish an
// index.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "core/types.h"

namespace verbena::core {

enum class Armed : uint8_t { No = 0, Solicited = 1, Any = 2 };

// How the memory goes in which completions lie: whoever made it says.
struct FreeRing {
  void (*free)(void* owner, Completion* ring) = nullptr;  // null: as std::make_unique made it
  void* owner = nullptr;
  void operator()(Completion* ring) const {
    if (free != nullptr) {
      free(owner, ring);
    } else {
      delete[] ring;
    }
  }
};

// The consumer's index has a line to itself, at the price of padding.
class alignas(64) CompletionQueue {
 public:
  using Ring = std::unique_ptr<Completion[], FreeRing>;

  // `ring`: of slots_for(capacity), or null.
  explicit CompletionQueue(uint32_t capacity, Ring ring = {});
  static uint32_t slots_for(uint32_t capacity);
  static Ring make_ring(uint32_t capacity);

  uint32_t capacity() const { return capacity_; }

  // Producer. The place of the next completion, to be written there (a copy would wait for what was
  // just stored), and then shown. Null when full: the completion is lost and the queue is in
  // overrun for good, unless the application said that it does not care.
  Completion* next() {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) < capacity_) [[likely]]
      return &ring_[tail & mask_];
    overrun_ = !ignore_overrun_;
    return nullptr;
  }
  // True: the application asked to be woken for this one.
  bool publish() {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    const bool wakes = events_wanted_ && raises_event(ring_[tail & mask_], tail + 1);
    tail_.store(tail + 1, std::memory_order_release);
    return wakes;
  }
  // Asks for one event at the next completion (or the next solicited one). A stronger request is
  // never weakened. The application should poll after arming; take_late_event() serves one that
  // does not, or that leaves completions behind.
  enum class Unpolled : uint8_t {
    None,
    Announced,    // by an event after which the application has not polled yet
    Unannounced,  // no event announced them, or the application polled and left them
  };
  // What waits in the queue, of the kind that the request is about.
  Unpolled arm(Armed level);
  // Some time after arm() found completions. True: they are still unpolled and no event was raised
  // meanwhile, so one is to be raised now.
  bool take_late_event();

  // Consumer. Takes up to `count` completions out; take(completion, i) sees each where it lies.
  template <typename Take>
  uint32_t poll_each(uint32_t count, Take take) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    const uint64_t tail = tail_.load(std::memory_order_acquire);
    const auto n = static_cast<uint32_t>(std::min<uint64_t>(tail - head, count));
    for (uint32_t i = 0; i < n; ++i) take(ring_[(head + i) & mask_], i);
    if (n != 0) head_.store(head + n, std::memory_order_release);
    return n;
  }
  uint32_t poll(Completion* out, uint32_t count) {
    return poll_each(count, [out](const Completion& c, uint32_t i) { out[i] = c; });
  }
  // Consumer. Drops what waits of a queue pair that was destroyed or reset.
  void forget(wire::Qpn qpn);
  bool empty() const {
    return tail_.load(std::memory_order_acquire) == head_.load(std::memory_order_relaxed);
  }
  uint32_t size() const {
    return static_cast<uint32_t>(tail_.load(std::memory_order_acquire) -
                                 head_.load(std::memory_order_acquire));
  }

  // How many were ever taken out.
  uint64_t taken() const { return head_.load(std::memory_order_relaxed); }

  // Both sides held off by the caller. False if more completions are waiting than would fit.
  // `ring`: of slots_for(capacity); afterwards the old one, for the caller to let go when it holds
  // nobody off any more.
  bool resize(uint32_t capacity, Ring& ring);

  bool overrun() const { return overrun_; }
  void ignore_overrun() { ignore_overrun_ = true; }

  void* owner = nullptr;  // the ABI's object around this one

 private:
  [[gnu::noinline]] bool raises_event(const Completion& completion, uint64_t end);
  void announce(uint64_t end);

  uint32_t capacity_;
  uint32_t mask_;
  Ring ring_;
  Armed armed_ = Armed::No;
  bool events_wanted_ = false;  // the queue was armed at least once
  bool overrun_ = false;
  bool ignore_overrun_ = false;
  // Each is the index behind the last completion that ...
  uint64_t announced_end_ = 0;   // an event announced
  uint64_t solicited_end_ = 0;   // is solicited or an error, or may be
  uint64_t late_end_ = 0;        // waited when the queue was armed
  uint64_t announced_head_ = 0;  // the consumer's index at the latest event
  // With the above, in the producer's line.
  std::atomic<uint64_t> tail_{0};  // written by the producer, release: entries before it are whole
  alignas(64) std::atomic<uint64_t> head_{
      0};  // written by the consumer, release: slots before it are free
};

}  // namespace verbena::core
