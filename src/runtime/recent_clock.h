// RecentClock: the time for those who ask many times in a microsecond. A reading of the clock waits
// for all that the CPU has under way; the cycle counter, which does not, says whether the last one
// will do.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace verbena::runtime {

Instant now();

class RecentClock {
 public:
  // At most about a microsecond old, and never earlier than what it said before.
  Instant now() {
#if defined(__x86_64__)
    constexpr uint64_t kFreshCycles = 2048;
    const uint64_t cycles = __builtin_ia32_rdtsc();
    if (cycles - read_at_ < kFreshCycles) return last_;  // another core's counter may be behind
    read_at_ = cycles;
#endif
    return last_ = runtime::now();
  }

 private:
  Instant last_;
  uint64_t read_at_ = 0;
};

}  // namespace verbena::runtime
