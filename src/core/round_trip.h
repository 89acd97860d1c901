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
  static constexpr Duration kPatience = milliseconds(1);
  // ...unless something was just lost.
  static constexpr Duration kPatienceInLoss = microseconds(50);

  void measured(Duration sample) {
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

  Duration usual() const { return known_ ? mean_ : kPatience; }

  // An answer that takes longer is late. None while nothing was measured.
  std::optional<Duration> late_after(bool losses) const {
    if (!known_) return std::nullopt;
    return mean_ + deviation_ * 4 + (losses ? kPatienceInLoss : kPatience);
  }

 private:
  bool known_ = false;
  Duration mean_;
  Duration deviation_;
};

}  // namespace verbena::core
