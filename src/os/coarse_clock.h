// The kernel's coarse monotonic clock. It is cheap to read and lags by a few milliseconds, so it
// serves pacing only.
#pragma once

#include <ctime>

#include "base/time.h"

namespace verbena::os {

inline Instant coarse_now() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return {int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

}  // namespace verbena::os
