// SpinLock: for the few instructions in which threads exchange data, such as completions of a
// queue. It is the only lock of the pure layers: their objects that several engines share have one.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/pause.h"

namespace verbena {

// The pause between two checks of a word that another thread is about to change. That thread may
// have been preempted in favour of this one, so this one yields the CPU after a while.
class SpinWait {
 public:
  void pause() {
    if (pauses_ < kPausesBeforeYield) {
      ++pauses_;
      pause_cpu();
    } else {
      sched_yield();
    }
  }

 private:
  static constexpr int kPausesBeforeYield = 256;

  int pauses_ = 0;
};

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
  [[gnu::noinline, gnu::cold]] void wait() {
    for (SpinWait wait; held_.load(std::memory_order_relaxed);) wait.pause();
  }

  std::atomic<bool> held_{false};
};

}  // namespace verbena
