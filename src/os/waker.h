// Waker: where threads sleep until an event has been put into a queue. To a program it is like a
// read() from a descriptor: a signal handler installed with SA_RESTART does not end the wait, any
// other gives EINTR, and the thread may be cancelled. (poll() would give EINTR for both.)
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
  // To be asked for before looking into the queue.
  uint32_t seen() const { return calls_.load(); }

  // Something is in the queue.
  void wake() {
    calls_.fetch_add(1);
    if (sleepers_.load() != 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
  }

  // Sleeps unless wake() was called since seen(). 0, or EINTR. A raw system call is no cancellation
  // point, so it is made one. Nothing here needs cleaning up when the thread is cancelled: frames
  // of a library with an unwinder of its own cannot. Then a sleeper too many is counted, which
  // costs a system call with each wake().
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
    return syscall(SYS_futex, &calls_, operation, value, nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> calls_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace verbena::os
