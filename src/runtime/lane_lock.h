// LaneLock: a mutex whose uncontended lock and unlock are one inlined atomic instruction each. A
// verbs call takes it once or twice and does little else, so its cost matters.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "base/pause.h"

namespace verbena::runtime {

class LaneLock {
 public:
  bool try_lock() {
    uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  void lock() {
    if (!try_lock()) [[unlikely]]
      spin_then_sleep();
  }
  // For the background thread. A sleeper on the lock costs the holder a system call with each
  // unlock, so the background thread first sleeps for short times without waiting on the lock.
  [[gnu::noinline]] void lock_in_background() {
    for (int wait = 0; wait < kWaitsForLock; ++wait) {
      if (spin(kSpins / 2)) return;
      const timespec pause{0, 100'000};
      nanosleep(&pause, nullptr);
    }
    sleep();
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]]
      futex(FUTEX_WAKE_PRIVATE, 1);
  }
  // Threads that sleep in lock(). The last holder can take the lock again before they wake up.
  bool has_sleepers() const { return sleepers_.load(std::memory_order_relaxed) != 0; }

 private:
  enum State : uint32_t { kFree, kHeld, kAwaited };
  static constexpr int kSpins = 100;
  static constexpr int kWaitsForLock = 10;

  bool spin(int times) {
    for (int i = 0; i < times; ++i) {
      if (try_lock()) return true;
      pause_cpu();
    }
    return false;
  }
  // The holder usually needs a few microseconds, which is less than falling asleep and waking up.
  [[gnu::noinline]] void spin_then_sleep() {
    if (spin(kSpins)) return;
    sleepers_.fetch_add(1, std::memory_order_relaxed);
    sleep();
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  // A thread that slept does not know whether others sleep, so it assumes that they do.
  void sleep() {
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      futex(FUTEX_WAIT_PRIVATE, kAwaited);
    }
  }
  // Keeps the errno of the program that made the call.
  void futex(int operation, uint32_t value) {
    const int before = errno;
    syscall(SYS_futex, &state_, operation, value, nullptr);
    errno = before;
  }

  std::atomic<uint32_t> state_{kFree};
  std::atomic<int> sleepers_{0};
};

}  // namespace verbena::runtime
