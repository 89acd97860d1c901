// Session: the calls from begin() to end() belong to one thread; other threads wait for the end.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace verbena::abi {

class Session {
 public:
  Session() = default;
  // `single_threaded`: the program promises that one thread at a time makes these calls. The thread
  // may change in between, so every caller counts as the one that called begin().
  explicit Session(bool single_threaded) : single_threaded_(single_threaded) {}

  // Whether the caller has called begin() and not yet end().
  bool begun() const {
    if (single_threaded_) return begun_;
    return owner_.load(std::memory_order_relaxed) == pthread_self();
  }
  // Requires !begun().
  void begin() {
    if (single_threaded_) {
      begun_ = true;
      return;
    }
    mutex_.lock();
    owner_.store(pthread_self(), std::memory_order_relaxed);
  }
  // Requires begun().
  void end() {
    if (single_threaded_) {
      begun_ = false;
      return;
    }
    owner_.store(pthread_t{}, std::memory_order_relaxed);
    mutex_.unlock();
  }

 private:
  const bool single_threaded_ = false;
  bool begun_ = false;  // single-threaded
  std::mutex mutex_;
  std::atomic<pthread_t> owner_{};
};

}  // namespace verbena::abi
