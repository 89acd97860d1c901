// RoundTrip: the smoothed round trip to a peer and its deviation, by TCP's estimator (RFC 6298),
// and the probe timeout that follows from them.
#pragma once

#include <algorithm>
#include <optional>

#include "base/time.h"

namespace verbena::core {

class RoundTrip {
 public:
  // The stall allowance covers a peer that is busy, or whose thread sleeps. It grows up to the
  // maximum for a peer that was found not to get a CPU for two clock ticks. After a loss it is
  // shorter.
  static constexpr Duration kStallAllowance = milliseconds(1);
  static constexpr Duration kMaxStallAllowance = milliseconds(8);
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

  // The silence after which a tail-loss probe is sent. None before the first sample. The allowance
  // is at most a quarter of `timeout`, the ACK timeout, but not below kStallAllowance.
  std::optional<Duration> probe_timeout(bool losses, Duration timeout) const {
    if (!known_) return std::nullopt;
    const Duration allowance = std::min(stall_allowance_, std::max(timeout / 4, kStallAllowance));
    return mean_ + deviation_ * 4 + (losses ? kStallAllowanceAfterLoss : allowance);
  }

  // The first response after a probe was received `later` after it. Within a round trip, it is the
  // response to the probe: a packet was lost. Later, the peer had stalled.
  void on_response_after_probe(Duration later) {
    const bool was_lost = later <= mean_ + deviation_ * 4 + kStallAllowanceAfterLoss;
    stall_allowance_ = was_lost ? std::max(stall_allowance_ / 2, kStallAllowance)
                                : std::min(stall_allowance_ * 2, kMaxStallAllowance);
  }
  // After a loss, the next silence is probably a loss, too.
  void on_lost() { stall_allowance_ = kStallAllowance; }

 private:
  Duration stall_allowance_ = kStallAllowance;
  bool known_ = false;
  Duration mean_;
  Duration deviation_;
};

}  // namespace verbena::core
