// CompletionQueue: a ring with one producer (the engine's owner) and one consumer (application
// threads, which serialise themselves). The two sides share only the two indices. Arming belongs to
// the producer's side, under its lock, so publishing an index is the only synchronisation. Queue
// pairs of several engines may use a queue; their owners then take turns as the producer.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/spin_lock.h"
#include "core/types.h"

namespace verbena::core {

enum class Armed : uint8_t { No = 0, Solicited = 1, Any = 2 };

// Frees the memory of the ring.
struct FreeRing {
  void (*free)(void* owner, Completion* ring) = nullptr;  // null: delete[]
  void* owner = nullptr;
  void operator()(Completion* ring) const {
    if (free != nullptr) {
      free(owner, ring);
    } else {
      delete[] ring;
    }
  }
};

// The consumer's index has its own cache line.
class alignas(64) CompletionQueue {
 public:
  using Ring = std::unique_ptr<Completion[], FreeRing>;

  // `ring`: of slots_for(capacity), or null.
  explicit CompletionQueue(uint32_t capacity, Ring ring = {});
  static uint32_t slots_for(uint32_t capacity);
  static Ring make_ring(uint32_t capacity);

  uint32_t capacity() const { return capacity_; }

  // Several engines use the queue from now on. Called by the only producer so far.
  void share() { is_shared_ = true; }
  bool is_shared() const { return is_shared_; }
  // Held around all calls of a producer. Takes a lock only if the queue is shared.
  class Producing {
   public:
    explicit Producing(CompletionQueue& cq) : lock_(cq.is_shared_ ? &cq.lock_ : nullptr) {
      if (lock_ != nullptr) [[unlikely]]
        lock_->lock();
    }
    ~Producing() {
      if (lock_ != nullptr) [[unlikely]]
        lock_->unlock();
    }
    Producing(const Producing&) = delete;
    Producing& operator=(const Producing&) = delete;

   private:
    SpinLock* const lock_;
  };

  // Producer. The slot of the next completion, which the caller fills in place (the loads of a copy
  // would wait for the stores) and then publishes. Null if the queue is full: the completion is
  // lost, and the queue stays in overrun unless the application chose to ignore overruns.
  Completion* next() {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) < capacity_) [[likely]]
      return &ring_[tail & mask_];
    overrun_.store(!ignore_overrun_, std::memory_order_relaxed);
    return nullptr;
  }
  // True: this completion raises an event.
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
  // The state of the unpolled completions of the requested kind.
  Unpolled arm(Armed level);
  // Called some time after arm() found completions. True: they are still unpolled and no event was
  // raised since, so the caller raises one now.
  bool take_late_event();

  // Consumer. Removes up to `count` completions; take(completion, i) reads each in place.
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
  // Consumer. Drops the completions of a queue pair that was destroyed or reset.
  void forget(wire::Qpn qpn);
  bool empty() const {
    return tail_.load(std::memory_order_acquire) == head_.load(std::memory_order_relaxed);
  }
  uint32_t size() const {
    return static_cast<uint32_t>(tail_.load(std::memory_order_acquire) -
                                 head_.load(std::memory_order_acquire));
  }

  // The number of completions polled so far.
  uint64_t taken() const { return head_.load(std::memory_order_relaxed); }

  // The caller excludes producer and consumer. False if the completions do not fit. `ring`: of
  // slots_for(capacity); afterwards the old ring, which the caller frees after it releases its
  // locks.
  bool resize(uint32_t capacity, Ring& ring);

  // Any thread.
  bool overrun() const { return overrun_.load(std::memory_order_relaxed); }
  void ignore_overrun() { ignore_overrun_ = true; }

  void* owner = nullptr;  // the ABI's object around this one

 private:
  [[gnu::noinline]] bool raises_event(const Completion& completion, uint64_t end);
  void announce(uint64_t end);

  // The producer's cache line: what every completion needs.
  uint32_t capacity_;
  uint32_t mask_;
  Ring ring_;
  Armed armed_ = Armed::No;
  bool events_wanted_ = false;  // the queue was armed at least once
  std::atomic<bool> overrun_{false};
  bool ignore_overrun_ = false;
  bool is_shared_ = false;
  std::atomic<uint64_t> tail_{0};  // written by the producer, release: entries before it are whole
  alignas(64) std::atomic<uint64_t> head_{
      0};  // written by the consumer, release: slots before it are free
  // Needed for events only. Each is the index behind the last completion that ...
  alignas(64) uint64_t announced_end_ = 0;  // an event announced
  uint64_t solicited_end_ = 0;              // is solicited or an error, or may be
  uint64_t late_end_ = 0;                   // waited when the queue was armed
  uint64_t announced_head_ = 0;             // the consumer's index at the latest event
  SpinLock lock_;                           // of the producers, if shared
};

}  // namespace verbena::core
