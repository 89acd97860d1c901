// The probe timeout, from measured round trips.
#include "core/round_trip.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

constexpr Duration kAckTimeout = milliseconds(67);

TEST(RoundTrip, StallAllowanceGrowsWithNeedlessProbesAndEndsWithALoss) {
  RoundTrip r;
  for (int i = 0; i < 100; ++i) r.on_sample(microseconds(100));
  const Duration at_first = *r.probe_timeout(false, kAckTimeout);
  r.on_response_after_probe(microseconds(900));
  EXPECT_EQ(*r.probe_timeout(false, kAckTimeout) - at_first, milliseconds(1));
  for (int i = 0; i < 10; ++i) r.on_response_after_probe(microseconds(900));
  EXPECT_EQ(*r.probe_timeout(false, kAckTimeout) - at_first, milliseconds(7));
  EXPECT_LT(*r.probe_timeout(false, milliseconds(8)),
            milliseconds(4));  // the probe timeout stays below the ACK timeout
  EXPECT_LT(*r.probe_timeout(true, kAckTimeout), microseconds(300));
  r.on_response_after_probe(microseconds(100));  // the response to the probe
  EXPECT_EQ(*r.probe_timeout(false, kAckTimeout) - at_first, milliseconds(3));
  r.on_lost();
  EXPECT_EQ(*r.probe_timeout(false, kAckTimeout), at_first);
  r.on_response_after_probe(microseconds(100));
  EXPECT_EQ(*r.probe_timeout(false, kAckTimeout), at_first);
}

TEST(RoundTrip, ProbeTimeoutExceedsTheMeasuredRoundTrip) {
  RoundTrip r;
  EXPECT_FALSE(r.probe_timeout(false, kAckTimeout).has_value());
  EXPECT_FALSE(r.probe_timeout(true, kAckTimeout).has_value());
  for (int i = 0; i < 100; ++i) r.on_sample(microseconds(100));
  EXPECT_EQ(r.smoothed(), microseconds(100));
  EXPECT_GE(*r.probe_timeout(true, kAckTimeout), microseconds(100));
  EXPECT_LT(*r.probe_timeout(true, kAckTimeout), microseconds(300));
  EXPECT_GT(*r.probe_timeout(false, kAckTimeout), milliseconds(1));
  // The probe timeout is longer for a peer whose round trips vary.
  for (int i = 0; i < 100; ++i) r.on_sample(microseconds(i % 2 == 0 ? 100 : 900));
  EXPECT_GT(*r.probe_timeout(true, kAckTimeout), microseconds(1500));
}

}  // namespace
}  // namespace verbena::core
