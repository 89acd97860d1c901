// The system's clock.
#include "runtime/recent_clock.h"

#include <time.h>

namespace verbena::runtime {

Instant now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return {int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

}  // namespace verbena::runtime
