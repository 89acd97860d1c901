// SpinLock: for the few instructions that copy completions out of a queue.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/pause.h"

namespace verbena::abi {

class SpinLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) [[unlikely]] wait();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

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

}  // namespace verbena::abi
