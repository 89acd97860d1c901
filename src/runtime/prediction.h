// Prediction: whether to try something that saves time when it succeeds and costs time when it
// fails. Each failure doubles the pause before the next attempt.
#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::runtime {

class Prediction {
 public:
  // Pauses are counted in opportunities.
  constexpr Prediction(uint32_t first_pause, uint32_t longest_pause)
      : first_pause_(first_pause), longest_pause_(longest_pause) {}

  bool is_due() const { return pause_left_ == 0; }
  // One opportunity has passed.
  void pass() { pause_left_ -= is_due() ? 0 : 1; }
  // Both, for callers that ask exactly once per opportunity.
  bool try_now() {
    const bool due = is_due();
    pass();
    return due;
  }

  void succeeded() { pause_ = first_pause_; }
  void failed() {
    pause_left_ = pause_;
    pause_ = std::min(pause_ * 2, longest_pause_);
  }
  // The next attempt is due now.
  void end_pause() { pause_left_ = 0; }

 private:
  uint32_t first_pause_;
  uint32_t longest_pause_;
  uint32_t pause_left_ = 0;
  uint32_t pause_ = first_pause_;
};

}  // namespace verbena::runtime
