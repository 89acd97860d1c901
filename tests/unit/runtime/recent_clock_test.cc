// The clock that extrapolates with the cycle counter.
#include "runtime/recent_clock.h"

#include <gtest/gtest.h>

namespace verbena::runtime {
namespace {

// Two cycles per nanosecond, unless a test changes the counter.
struct FakeTime {
  static inline int64_t ns = 0;
  static inline uint64_t count = 0;
  static inline int readings = 0;

  static Instant clock() {
    ++readings;
    return {ns};
  }
  static uint64_t cycles() { return count; }
  static void pass(int64_t passed) {
    ns += passed;
    count += static_cast<uint64_t>(2 * passed);
  }
};

class RecentClockTest : public testing::Test {
 protected:
  void SetUp() override {
    FakeTime::ns = 1'000'000'000;
    FakeTime::count = 77'000;
    FakeTime::readings = 0;
  }
  // Until the rate of the counter is known.
  void calibrate() {
    for (int i = 0; i < 5000; ++i) {
      FakeTime::pass(1000);
      clock_.now();
    }
    FakeTime::readings = 0;
  }
  BasicRecentClock<FakeTime> clock_;
};

TEST_F(RecentClockTest, ReadsTheClockUntilTheCounterIsCalibrated) {
  for (int i = 0; i < 100; ++i) {
    FakeTime::pass(7);
    EXPECT_EQ(clock_.now().ns, FakeTime::ns);
  }
}

TEST_F(RecentClockTest, OnceCalibratedSeldomReadsTheClock) {
  calibrate();
  for (int i = 0; i < 1000; ++i) {
    FakeTime::pass(100);
    EXPECT_NEAR(static_cast<double>(clock_.now().ns), static_cast<double>(FakeTime::ns), 2);
  }
  EXPECT_GE(FakeTime::readings, 3);
  EXPECT_LE(FakeTime::readings, 6);
}

TEST_F(RecentClockTest, NeverGoesBackwards) {
  calibrate();
  Instant before = clock_.now();
  for (int i = 0; i < 100'000; ++i) {
    FakeTime::pass(50);
    // The counter runs fast for a while, then the clock is read again and is behind; or another
    // core's counter is behind.
    if (i % 7 == 0) FakeTime::count += 40;
    if (i % 1001 == 0) FakeTime::count -= 5000;
    const Instant now = clock_.now();
    ASSERT_GE(now, before);
    before = now;
  }
}

TEST_F(RecentClockTest, AdaptsToACounterThatJumped) {
  calibrate();
  // The clock stopped for an hour and the counter did not.
  FakeTime::count += uint64_t{2} * 3600 * 1'000'000'000;
  for (int i = 0; i < 2'000'000; ++i) {
    FakeTime::pass(10'000);
    clock_.now();
  }
  FakeTime::pass(20'000);
  EXPECT_NEAR(static_cast<double>(clock_.now().ns), static_cast<double>(FakeTime::ns), 20);
}

}  // namespace
}  // namespace verbena::runtime
