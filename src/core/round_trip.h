// RoundTrip: how long a peer takes to answer, smoothed, and how much that varies. It says when an
// answer is late enough to ask for it again (TCP's estimator, RFC 6298, serves here as well).
#pragma once

#include <algorithm>
#include <optional>

#include "base/time.h"

namespace verbena::core {

class RoundTrip {
 public:
  // A peer that is busy with something else, or whose thread sleeps, is not late yet...
  static constexpr Duration kStallAllowance = milliseconds(1);
  // ...nor, where that was found to happen, one that gets no processor for two ticks of a clock...
  static constexpr Duration kMaxStallAllowance = milliseconds(8);
  // ...unless something was just lost.
  static constexpr Duration kStallAllowanceAfterLoss = microseconds(50);

  void on_sample(Duration sample) {
    if (!known_) {
      known_ = true;
      mean_ = sample;
      deviation_ = sample / 2;
      return;
    }
    const Duration off = sample > mean_ ? sample - mean_ : mean_ - sample;
    deviation_ = deviation_ + (off - deviation_) / 4;
    mean_ = mean_ + (sample - mean_) / 8;
  }

  Duration smoothed() const { return known_ ? mean_ : kStallAllowance; }

  // An answer that takes longer is late. None while nothing was measured. Who gives up after
  // `timeout` asks well before that.
  std::optional<Duration> probe_timeout(bool losses, Duration timeout) const {
    if (!known_) return std::nullopt;
    const Duration allowance = std::min(stall_allowance_, std::max(timeout / 4, kStallAllowance));
    return mean_ + deviation_ * 4 + (losses ? kStallAllowanceAfterLoss : allowance);
  }

  // The peer was asked again and so much later, not before, was heard of. If it was because of a
  // loss, that is the answer; if it takes longer, the peer had stood still.
  void on_response_after_probe(Duration later) {
    const bool answer = later <= mean_ + deviation_ * 4 + kStallAllowanceAfterLoss;
    stall_allowance_ = answer ? std::max(stall_allowance_ / 2, kStallAllowance)
                              : std::min(stall_allowance_ * 2, kMaxStallAllowance);
  }
  // Where packets get lost, silence may well mean that again.
  void on_lost() { stall_allowance_ = kStallAllowance; }

 private:
  Duration stall_allowance_ = kStallAllowance;
  bool known_ = false;
  Duration mean_;
  Duration deviation_;
};

}  // namespace verbena::core
