// NicLock: a mutex of which the usual case, that nobody else is there, is two instructions in
// place. A verbs call takes it once or twice, and does little else.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace verbena::runtime {

class NicLock {
 public:
  bool try_lock() {
    uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  void lock() {
    if (!try_lock()) [[unlikely]]
      wait();
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]]
      futex(FUTEX_WAKE_PRIVATE, 1);
  }

 private:
  enum State : uint32_t { kFree, kHeld, kAwaited };

  // Whoever slept does not know whether others do, and says that they do.
  void wait() {
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      futex(FUTEX_WAIT_PRIVATE, kAwaited);
    }
  }
  // That somebody was faster is no business of the program whose call this is.
  void futex(int operation, uint32_t value) {
    const int before = errno;
    syscall(SYS_futex, &state_, operation, value, nullptr);
    errno = before;
  }

  std::atomic<uint32_t> state_{kFree};
};

}  // namespace verbena::runtime
