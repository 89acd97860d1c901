// TokenBucket: a rate limit. The bucket holds at most `burst` tokens and gains one per `interval`.
// The caller passes the time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace verbena {

class TokenBucket {
 public:
  constexpr TokenBucket(uint32_t burst, Duration interval)
      : interval_(interval), capacity_(interval * burst) {}

  // Removes `tokens` tokens; false, and no change, if the bucket has fewer.
  constexpr bool take(Instant now, uint32_t tokens = 1) {
    const Instant full_at = std::max(full_at_, now) + interval_ * tokens;
    if (full_at - now > capacity_) return false;
    full_at_ = full_at;
    return true;
  }

 private:
  Duration interval_;
  Duration capacity_;
  Instant full_at_{};  // when the bucket is full again
};

}  // namespace verbena
