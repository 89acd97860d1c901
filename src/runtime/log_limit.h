// LogLimit: limits log lines that peers on the network can cause. A burst is written, then one line
// per second with the number of suppressed lines. Time is handed in.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/token_bucket.h"

namespace verbena::runtime {

class LogLimit {
 public:
  static constexpr uint32_t kBurst = 10;

  // None: suppress this line. Otherwise the number of lines suppressed before it.
  std::optional<uint64_t> pass(Instant now) {
    if (!lines_.take(now)) {
      ++suppressed_;
      return std::nullopt;
    }
    return std::exchange(suppressed_, 0);
  }

 private:
  TokenBucket lines_{kBurst, seconds(1)};
  uint64_t suppressed_ = 0;
};

}  // namespace verbena::runtime
