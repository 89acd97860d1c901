// PathBackoff: a queue pair whose path is full sends nothing for a time that doubles with each
// attempt.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace verbena::core {

class PathBackoff {
 public:
  static constexpr Duration kFirstWait = microseconds(20);
  static constexpr Duration kMaxWait = milliseconds(2);

  // An attempt to send found the path full. Returns for how long the path has been full.
  Duration on_full(Instant now) {
    if (full_since_ == kNever) full_since_ = now;
    return now - full_since_;
  }
  void wait(Instant now) {
    until_ = now + next_wait_;
    next_wait_ = std::min(next_wait_ * 2, kMaxWait);
  }
  // An attempt to send found room.
  void on_room() {
    full_since_ = kNever;
    next_wait_ = kFirstWait;
  }
  void end_wait() { until_ = kNever; }

  // The latest attempt found the path full.
  bool is_full() const { return full_since_ != kNever; }
  bool is_waiting() const { return until_ != kNever; }
  // kNever: it does not wait.
  Instant until() const { return until_; }

 private:
  Instant until_ = kNever;
  Instant full_since_ = kNever;
  Duration next_wait_ = kFirstWait;
};

}  // namespace verbena::core
