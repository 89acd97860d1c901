// TokenBucket: limits how often something happens. It holds `burst` tokens at most, and one comes
// back every `interval`. Time is always handed in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace verbena {

class TokenBucket {
 public:
  constexpr TokenBucket(uint32_t burst, Duration interval)
      : interval_(interval), capacity_(interval * burst) {}

  // Takes this many tokens if the bucket has them.
  constexpr bool take(Instant now, uint32_t tokens = 1) {
    const Instant full_at = std::max(full_at_, now) + interval_ * tokens;
    if (full_at - now > capacity_) return false;
    full_at_ = full_at;
    return true;
  }

 private:
  Duration interval_;
  Duration capacity_;
  Instant full_at_{};  // when all tokens are back
};

}  // namespace verbena
