// A file descriptor with one owner. After a fork, the child closes its copies of all of them at
// once.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace verbena::os {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd);
  UniqueFd(UniqueFd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      generation_ = other.generation_;
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  // -1 after close_all_in_child(): the number may belong to the application by now.
  int get() const { return generation_ == current_generation() ? fd_ : -1; }
  bool valid() const { return get() >= 0; }
  // Transfers ownership to the caller.
  int release();
  void reset();

  // In the child of a fork: closes the descriptors of all UniqueFds of this library, which then
  // own nothing. The objects stay, and can be destroyed at any time. Async-signal-safe.
  static void close_all_in_child();

 private:
  static uint32_t current_generation() { return generation.load(std::memory_order_relaxed); }

  static std::atomic<uint32_t> generation;  // calls of close_all_in_child()
  int fd_ = -1;
  uint32_t generation_ = 0;  // when fd_ was opened
};

}  // namespace verbena::os
