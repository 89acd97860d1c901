// LogLimit: keeps lines of one kind that peers on the network can cause from filling the log. A
// burst of them is written, then one per second, which says how many were not. Time is handed in.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/token_bucket.h"

namespace verbena::runtime {

class LogLimit {
 public:
  static constexpr uint32_t kBurst = 10;

  // None: this line is not to be written. Otherwise how many before it were not.
  std::optional<uint64_t> pass(Instant now) {
    if (!lines_.take(now)) {
      ++hidden_;
      return std::nullopt;
    }
    return std::exchange(hidden_, 0);
  }

 private:
  TokenBucket lines_{kBurst, seconds(1)};
  uint64_t hidden_ = 0;
};

}  // namespace verbena::runtime
