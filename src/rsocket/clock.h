// Monotonic time, and deadlines in it.
#pragma once

#include <ctime>

#include "base/time.h"

namespace verbena::rsocket {

inline Instant now() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return {int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec};
}

// Converts poll()'s timeout to a deadline.
inline Instant deadline_after_ms(int64_t ms) { return ms < 0 ? kNever : now() + milliseconds(ms); }

}  // namespace verbena::rsocket
