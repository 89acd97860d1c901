// Waker: threads sleep here until an event is put into a queue. The wait behaves like a read() from
// a descriptor: a signal handler installed with SA_RESTART does not end it, any other handler ends
// it with EINTR, and the thread may be cancelled. (poll() returns EINTR in both cases.)
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace verbena::os {

class Waker {
 public:
  // Read this before checking the queue.
  uint32_t seen() const { return wakes_.load(); }

  // Call this after putting an event into the queue.
  void wake() {
    wakes_.fetch_add(1);
    if (sleepers_.load() != 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
  }

  // Sleeps unless wake() was called since seen(). Returns 0 or EINTR. A raw system call is not a
  // cancellation point, so asynchronous cancellation makes it one. This function has no cleanup
  // code, because the unwinder cannot run it in a library that contains its own unwinder. A
  // cancelled thread therefore leaves sleepers_ one too high, which costs one system call per
  // wake().
  int sleep(uint32_t seen) {
    sleepers_.fetch_add(1);
    int before = 0;
    // NOLINTNEXTLINE(concurrency-thread-canceltype-asynchronous): around one system call
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    const bool interrupted = futex(FUTEX_WAIT_PRIVATE, seen) < 0 && errno == EINTR;
    pthread_setcanceltype(before, nullptr);
    sleepers_.fetch_sub(1);
    return interrupted ? EINTR : 0;
  }

 private:
  long futex(int operation, uint32_t value) {
    return syscall(SYS_futex, &wakes_, operation, value, nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> wakes_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace verbena::os
