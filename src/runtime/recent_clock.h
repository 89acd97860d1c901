// RecentClock: a cheap clock for many readings per microsecond. Reading the system's clock
// serialises the CPU. The cycle counter does not, and it measures the time since the last reading.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace verbena::runtime {

Instant now();

struct SystemTime {
  static Instant clock() { return runtime::now(); }
  // Counts at a constant rate; 0: there is no such counter.
  static uint64_t cycles() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
  }
};

template <typename Source>
class BasicRecentClock {
 public:
  // Never earlier than the last result.
  Instant now() {
    const uint64_t cycles = Source::cycles();
    const uint64_t since = cycles - read_at_;
    // Another core's counter may be behind, or there may be no counter.
    if (since >= kTrustedCycles || rate_ == 0) [[unlikely]]
      return read(cycles);
    return returned_ = std::max(returned_,
                                last_ + nanoseconds(static_cast<int64_t>(since * rate_ >> kShift)));
  }

 private:
  static constexpr uint64_t kTrustedCycles = 1u << 16;  // some tens of microseconds
  static constexpr uint64_t kLearningCycles = 1u << 22;
  static constexpr uint64_t kForgottenCycles = uint64_t{1} << 33;
  static constexpr int kShift = 24;

  [[gnu::noinline]] Instant read(uint64_t cycles) {
    read_at_ = cycles;
    last_ = Source::clock();
    if (first_ == Instant{}) {
      first_ = last_;
      first_cycles_ = cycles;
    }
    // The rate is measured over a long interval, because the thread may be preempted between the
    // two readings. The interval is restarted at times, because only one of the two clocks may run
    // while the machine is suspended.
    const uint64_t counted = cycles - first_cycles_;
    if (counted >= kLearningCycles) {
      const auto ns = static_cast<double>((last_ - first_).ns);
      rate_ = static_cast<uint64_t>(ns / static_cast<double>(counted) * (1 << kShift));
    }
    if (counted >= kForgottenCycles) {
      first_ = last_;
      first_cycles_ = cycles;
    }
    return returned_ = std::max(returned_, last_);
  }

  Instant last_;          // the last reading
  uint64_t read_at_ = 0;  // in cycles
  Instant returned_;      // the last result
  uint64_t rate_ = 0;     // nanoseconds in 2^kShift cycles; 0: not known yet
  Instant first_;
  uint64_t first_cycles_ = 0;
};

using RecentClock = BasicRecentClock<SystemTime>;

}  // namespace verbena::runtime
