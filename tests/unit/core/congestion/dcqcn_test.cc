// DCQCN's rate: the cut for a CNP and the recovery.
#include "core/congestion/dcqcn.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

constexpr Instant kFirstCnp{1'000'000};
constexpr uint64_t kLine = 1'250'000'000;  // 10 Gb/s

TEST(DcqcnRate, LimitsNothingBeforeACnp) {
  DcqcnRate rate;
  rate.advance(kLine, kFirstCnp);
  EXPECT_EQ(rate.rate(), CongestionControl::kUnpaced);
}

TEST(DcqcnRate, HalvesTheRateForTheFirstCnp) {
  DcqcnRate rate;
  rate.on_cnp(kLine, kFirstCnp);
  EXPECT_EQ(rate.rate(), kLine / 2);
}

TEST(DcqcnRate, CutsLessAfterATimeWithoutCnps) {
  DcqcnRate rate;
  rate.on_cnp(kLine, kFirstCnp);
  Instant now = kFirstCnp;
  for (int i = 0; i < 10; ++i) {
    now = now + milliseconds(1);
    rate.advance(UINT64_MAX / 4, now);
  }
  const uint64_t before = rate.rate();
  rate.on_cnp(kLine, now);
  EXPECT_GT(rate.rate(), before * 6 / 10);
  EXPECT_LT(rate.rate(), before);
}

TEST(DcqcnRate, ReturnsToTheOldRateInFiveSteps) {
  DcqcnRate rate;
  rate.on_cnp(kLine, kFirstCnp);
  rate.advance(kLine, kFirstCnp + DcqcnRate::kIncreasePeriod * 5);
  EXPECT_GT(rate.rate(), kLine * 95 / 100);
  EXPECT_LE(rate.rate(), kLine);
}

TEST(DcqcnRate, EndsWhenTheWindowLimitsMore) {
  DcqcnRate rate;
  rate.on_cnp(kLine, kFirstCnp);
  rate.advance(kLine, kFirstCnp + seconds(1));
  EXPECT_FALSE(rate.is_limited());
}

TEST(DcqcnRate, AFloodOfCnpsStopsAtTheFloor) {
  DcqcnRate rate;
  for (int i = 0; i < 100'000; ++i) rate.on_cnp(kLine, kFirstCnp + microseconds(i));
  EXPECT_EQ(rate.rate(), DcqcnRate::kMinRate);
}

TEST(Dcqcn, PacesAfterACnpAndKeepsTheWindow) {
  Dcqcn control;
  control.on_round_trip(milliseconds(1), kFirstCnp);
  control.on_cnp(kFirstCnp);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow);
  EXPECT_EQ(control.pacing_rate(), uint64_t{Aimd::kInitialWindow} * 1000 / 2);
  control.on_acked({.bytes = 1000, .now = kFirstCnp + seconds(1)});
  EXPECT_EQ(control.pacing_rate(), CongestionControl::kUnpaced);
}

TEST(Dcqcn, AMarkedAckCountsAsACnp) {
  Dcqcn control;
  control.on_round_trip(microseconds(10), kFirstCnp);
  const uint64_t full = uint64_t{Aimd::kInitialWindow} * 100'000;
  control.on_acked({.bytes = 1000, .marked = true, .now = kFirstCnp});
  EXPECT_EQ(control.pacing_rate(), full / 2);
  control.on_acked({.bytes = 1000, .marked = true, .now = kFirstCnp + microseconds(40)});
  EXPECT_EQ(control.pacing_rate(), full / 2) << "at most one cut in 50 us";
  control.on_acked({.bytes = 1000, .marked = true, .now = kFirstCnp + microseconds(50)});
  EXPECT_LT(control.pacing_rate(), full / 3);
}

}  // namespace
}  // namespace verbena::core
