// When a response is late, by what was measured.
#include "core/round_trip.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

constexpr Duration kAckTimeout = milliseconds(67);

TEST(RoundTrip, PatienceGrowsWithProbesInVainAndEndsWithALoss) {
  RoundTrip r;
  for (int i = 0; i < 100; ++i) r.measured(microseconds(100));
  const Duration at_first = *r.late_after(false, kAckTimeout);
  r.heard_after_probe(microseconds(900));
  EXPECT_EQ(*r.late_after(false, kAckTimeout) - at_first, milliseconds(1));
  for (int i = 0; i < 10; ++i) r.heard_after_probe(microseconds(900));
  EXPECT_EQ(*r.late_after(false, kAckTimeout) - at_first, milliseconds(7));
  EXPECT_LT(*r.late_after(false, milliseconds(8)), milliseconds(4));  // probes before timeouts
  EXPECT_LT(*r.late_after(true, kAckTimeout), microseconds(300));
  r.heard_after_probe(microseconds(100));  // its answer
  EXPECT_EQ(*r.late_after(false, kAckTimeout) - at_first, milliseconds(3));
  r.lost();
  EXPECT_EQ(*r.late_after(false, kAckTimeout), at_first);
  r.heard_after_probe(microseconds(100));
  EXPECT_EQ(*r.late_after(false, kAckTimeout), at_first);
}

TEST(RoundTrip, LateIsWellBeyondWhatWasMeasured) {
  RoundTrip r;
  EXPECT_FALSE(r.late_after(false, kAckTimeout).has_value());
  EXPECT_FALSE(r.late_after(true, kAckTimeout).has_value());
  for (int i = 0; i < 100; ++i) r.measured(microseconds(100));
  EXPECT_EQ(r.usual(), microseconds(100));
  EXPECT_GE(*r.late_after(true, kAckTimeout), microseconds(100));
  EXPECT_LT(*r.late_after(true, kAckTimeout), microseconds(300));
  EXPECT_GT(*r.late_after(false, kAckTimeout), milliseconds(1));
  // Of a peer that is now quick, now slow, more is put up with.
  for (int i = 0; i < 100; ++i) r.measured(microseconds(i % 2 == 0 ? 100 : 900));
  EXPECT_GT(*r.late_after(true, kAckTimeout), microseconds(1500));
}

}  // namespace
}  // namespace verbena::core
