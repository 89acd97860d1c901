// SpinLock: for the few instructions in which threads exchange data, such as completions of a
// queue. It is the only lock of the pure layers: their objects that several engines share have one.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/pause.h"

namespace verbena {

class SpinLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) [[unlikely]] wait();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

  class Guard {
   public:
    explicit Guard(SpinLock& lock) : lock_(lock) { lock_.lock(); }
    ~Guard() { lock_.unlock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    SpinLock& lock_;
  };

 private:
  // The holder may have been preempted in favour of this thread: yield the CPU after a while.
  [[gnu::noinline, gnu::cold]] void wait() {
    for (int spins = 0; held_.load(std::memory_order_relaxed); ++spins) {
      if (spins < 256) {
        pause_cpu();
      } else {
        sched_yield();
      }
    }
  }

  std::atomic<bool> held_{false};
};

}  // namespace verbena
