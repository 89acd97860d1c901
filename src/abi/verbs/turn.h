// Turn: what a program does between a start and an end belongs to one thread, and others wait for
// the end.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace verbena::abi {

class Turn {
 public:
  Turn() = default;
  // `single_threaded`: the program promised that no two threads are at it at a time. Which of them
  // it is may change in between, so whoever calls has the turn that was begun.
  explicit Turn(bool single_threaded) : single_threaded_(single_threaded) {}

  // Whether the caller has begun and not ended it.
  bool begun() const {
    if (single_threaded_) return begun_;
    return owner_.load(std::memory_order_relaxed) == pthread_self();
  }
  // Not while it is begun().
  void begin() {
    if (single_threaded_) {
      begun_ = true;
      return;
    }
    mutex_.lock();
    owner_.store(pthread_self(), std::memory_order_relaxed);
  }
  // Only while it is begun().
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
