// Guess: whether to try what pays when it comes true and costs a moment when it does not. Each
// disappointment makes the pause until the next attempt twice as long.
#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::runtime {

class Guess {
 public:
  // Pauses are in occasions.
  constexpr Guess(uint32_t first_pause, uint32_t longest_pause)
      : first_pause_(first_pause), longest_pause_(longest_pause) {}

  bool due() const { return pause_left_ == 0; }
  // One occasion less to wait for.
  void pass() { pause_left_ -= due() ? 0 : 1; }
  // Both, where each occasion is asked about once.
  bool worth_trying() {
    const bool now = due();
    pass();
    return now;
  }

  void came_true() { pause_ = first_pause_; }
  void disappointed() {
    pause_left_ = pause_;
    pause_ = std::min(pause_ * 2, longest_pause_);
  }
  // There is reason to try again at once.
  void end_pause() { pause_left_ = 0; }

 private:
  uint32_t first_pause_;
  uint32_t longest_pause_;
  uint32_t pause_left_ = 0;
  uint32_t pause_ = first_pause_;
};

}  // namespace verbena::runtime
