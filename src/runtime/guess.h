// Guess: whether to try what pays when it comes true and costs a moment when it does not. Each
// disappointment makes the pause until the next attempt twice as long.
#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::runtime {

class Guess {
 public:
  // Asked once for each occasion.
  bool worth_trying() {
    if (pause_left_ == 0) return true;
    --pause_left_;
    return false;
  }
  void came_true() { pause_ = kFirstPause; }
  void disappointed() {
    pause_left_ = pause_;
    pause_ = std::min(pause_ * 2, kLongestPause);
  }

 private:
  static constexpr uint32_t kFirstPause = 16;
  static constexpr uint32_t kLongestPause = 4096;

  uint32_t pause_left_ = 0;
  uint32_t pause_ = kFirstPause;
};

}  // namespace verbena::runtime
