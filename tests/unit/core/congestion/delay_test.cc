// The reactions of Delay to single signals. tests/sim/shared_link_test.cc shows whole flows.
#include "core/congestion/delay.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace verbena::core {
namespace {

constexpr Duration kEmptyPath = microseconds(100);

class DelayTest : public ::testing::Test {
 protected:
  // A round trip in which the whole window is acknowledged.
  void round(Duration round_trip, bool marked = false) {
    const uint32_t window = control_.window();
    now_ = now_ + round_trip;
    control_.on_round_trip(round_trip, now_);
    control_.on_acked({.bytes = window, .in_flight = window, .marked = marked, .now = now_});
  }
  void lose(uint32_t bytes) {
    control_.on_lost(
        {.bytes = bytes, .now = now_, .episode = {.window = control_.window(), .bytes_lost = 0}});
  }
  // Leaves slow start with this window at most.
  void grow_to(uint32_t window) {
    while (control_.window() < window) round(kEmptyPath);
    lose(1);
  }

  // Keeps a queue until the flow pauses, and measures this round trip in the pause.
  void pause_with(Duration round_trip) {
    for (int i = 0; i < 10'000 && !control_.is_pausing(); ++i)
      round(kEmptyPath + microseconds(450));
    ASSERT_TRUE(control_.is_pausing());
    now_ = now_ + milliseconds(4);
    control_.on_round_trip(round_trip, now_);
    now_ = now_ + milliseconds(4);
    control_.on_acked({.bytes = 1, .in_flight = 1, .now = now_});
    ASSERT_FALSE(control_.is_pausing());
  }

  Instant now_{1'000'000'000};
  Delay control_;
};

TEST_F(DelayTest, DoublesTheWindowInSlowStart) {
  round(kEmptyPath);
  EXPECT_EQ(control_.window(), 2 * Delay::kInitialWindow);
}

TEST_F(DelayTest, BeginsWithSevenPacketsIfTheyAreLarge) {
  control_.set_packet_bytes(1024 + 256);
  EXPECT_EQ(control_.window(), Delay::kInitialWindow);
  control_.set_packet_bytes(4096 + 256);
  EXPECT_EQ(control_.window(), 7u * (4096 + 256));
}

TEST_F(DelayTest, DoesNotGrowWhileTheSenderNeedsLess) {
  control_.on_round_trip(kEmptyPath, now_);
  control_.on_acked({.bytes = 1000, .in_flight = 1000, .now = now_});
  EXPECT_EQ(control_.window(), Delay::kInitialWindow);
}

TEST_F(DelayTest, StopsAtTheReceiveBufferOnAShortPath) {
  for (int i = 0; i < 100; ++i)
    round(std::max(microseconds(20), nanoseconds(control_.window() / 5)));
  EXPECT_EQ(control_.window(), CongestionControl::kReceiveBufferBytes);
}

TEST_F(DelayTest, GrowsBeyondTheReceiveBufferOnALongPath) {
  for (int i = 0; i < 20; ++i) round(milliseconds(40));
  EXPECT_GT(control_.window(), 16u * 1024 * 1024);
  for (int i = 0; i < 200; ++i) round(milliseconds(40));
  EXPECT_EQ(control_.window(), Delay::kMaxWindow);
}

TEST_F(DelayTest, ShrinksWhenTheQueueExceedsTheTarget) {
  grow_to(200'000);
  const uint32_t before = control_.window();
  for (int i = 0; i < 3; ++i) round(kEmptyPath + milliseconds(1));
  EXPECT_GE(control_.window(), before) << "a thread may have waited for its CPU";
  for (int i = 0; i < 8; ++i) round(kEmptyPath + milliseconds(1));
  EXPECT_LT(control_.window(), before * 7 / 10);
}

TEST_F(DelayTest, DoesNotShrinkBelowTheTarget) {
  grow_to(200'000);
  const uint32_t before = control_.window();
  for (int i = 0; i < 20; ++i) round(kEmptyPath + microseconds(400));
  EXPECT_GE(control_.window(), before);
}

TEST_F(DelayTest, OneSlowRoundTripOfARoundIsNoQueue) {
  grow_to(200'000);
  const uint32_t before = control_.window();
  for (int i = 0; i < 20; ++i) {
    control_.on_round_trip(milliseconds(4), now_);  // a thread waited for its CPU
    round(kEmptyPath);
  }
  EXPECT_GE(control_.window(), before);
}

TEST_F(DelayTest, IgnoresADelayThatStaysWhenTheWindowShrinks) {
  grow_to(200'000);
  const uint32_t before = control_.window();
  int rounds = 0;
  while (!control_.ignores_delay() && ++rounds < 50) round(kEmptyPath + milliseconds(5));
  EXPECT_TRUE(control_.ignores_delay());
  EXPECT_GE(control_.window(), before) << "the window is restored";
  for (int i = 0; i < 500; ++i) round(kEmptyPath);  // longer than a pause
  EXPECT_FALSE(control_.ignores_delay()) << "the queue is empty again";
}

TEST_F(DelayTest, ShrinksByHalfOfTheMarkedShare) {
  grow_to(200'000);
  for (int i = 0; i < 200; ++i) round(kEmptyPath + microseconds(200));  // no marks for long
  const uint32_t before = control_.window();
  for (int i = 0; i < 3; ++i) round(kEmptyPath + microseconds(200), true);
  EXPECT_LT(control_.window(), before);
  EXPECT_GT(control_.window(), before * 8 / 10) << "the marked share is still small";
  for (int i = 0; i < 100; ++i) round(kEmptyPath + microseconds(200), true);
  EXPECT_LT(control_.window(), before / 100);
}

TEST_F(DelayTest, ReactsToMarksAfterOneMeasuredRoundTrip) {
  const Duration round_trip = microseconds(10);
  const uint32_t window = control_.window();
  // The first ACK starts a round, and no pause, before the round trip is known.
  control_.on_acked({.bytes = window, .in_flight = window, .marked = true, .now = now_});
  control_.on_round_trip(round_trip, now_);
  EXPECT_FALSE(control_.is_pausing());
  const uint32_t before = control_.window();
  for (int i = 0; i < 2; ++i) round(round_trip, true);
  EXPECT_LT(control_.window(), before);
}

TEST_F(DelayTest, GrowsByAPacketFromASmallWindowWhenTheQueueIsEmpty) {
  round(kEmptyPath);
  while (control_.window() > Delay::kMinWindow) control_.on_timed_out(now_);
  for (int i = 0; i < 4; ++i) round(kEmptyPath);
  EXPECT_GE(control_.window(), 2 * Delay::kPacketBytes);
}

TEST_F(DelayTest, ACnpBeforeTheFirstRoundTripHalvesTheWindow) {
  control_.on_cnp(now_);
  control_.on_cnp(now_ + microseconds(50));
  EXPECT_EQ(control_.window(), Delay::kInitialWindow / 2);
  EXPECT_EQ(control_.pacing_rate(), CongestionControl::kUnpaced);
}

TEST_F(DelayTest, ALossOfAFullQueueCostsThreeTenths) {
  grow_to(200'000);
  control_.on_round_trip(kEmptyPath + milliseconds(1), now_);
  now_ = now_ + milliseconds(10);
  const uint32_t before = control_.window();
  lose(1000);
  EXPECT_EQ(control_.window(), before * 7 / 10);
  lose(1000);
  EXPECT_EQ(control_.window(), before * 7 / 10) << "only once in a round trip";
}

TEST_F(DelayTest, ALossWithoutAQueueCostsTwiceTheLostBytes) {
  grow_to(200'000);
  round(kEmptyPath);
  const uint32_t before = control_.window();
  lose(1000);
  EXPECT_EQ(control_.window(), before - 2000);
}

TEST_F(DelayTest, PacesAWindowBelowTwoPackets) {
  grow_to(200'000);
  EXPECT_EQ(control_.pacing_rate(), CongestionControl::kUnpaced);
  for (int i = 0; i < 200; ++i) round(milliseconds(1), true);
  ASSERT_LT(control_.window(), Delay::kPacketBytes);
  EXPECT_LE(control_.pacing_rate(), uint64_t{control_.window()} * 1100);
}

TEST_F(DelayTest, CnpsLimitTheRateAndNotTheWindow) {
  grow_to(200'000);
  const uint32_t before = control_.window();
  control_.on_cnp(now_);
  EXPECT_EQ(control_.window(), before);
  EXPECT_NE(control_.pacing_rate(), CongestionControl::kUnpaced);
}

TEST_F(DelayTest, PausesToMeasureTheSmallestRoundTripAgain) {
  grow_to(200'000);
  int rounds = 0;
  while (!control_.is_pausing() && ++rounds < 5000) round(kEmptyPath + microseconds(450));
  ASSERT_TRUE(control_.is_pausing());
  EXPECT_LE(control_.window(), Delay::kPacketBytes);
  const uint32_t in_pause = control_.window();
  now_ = now_ + milliseconds(20);
  control_.on_acked({.bytes = in_pause, .in_flight = in_pause, .now = now_});
  EXPECT_FALSE(control_.is_pausing());
  EXPECT_GT(control_.window(), 100'000u);
}

TEST_F(DelayTest, AQueueThatStaysInAPauseIsThatOfOthers) {
  grow_to(200'000);
  pause_with(milliseconds(1));
  EXPECT_TRUE(control_.ignores_delay());
  pause_with(kEmptyPath);
  EXPECT_FALSE(control_.ignores_delay()) << "all flows have paused";
}

TEST_F(DelayTest, HalfAQueueThatStaysInAPauseIsThatOfOthers) {
  grow_to(200'000);
  pause_with(kEmptyPath + microseconds(150));  // the round trip halves, and no more
  EXPECT_TRUE(control_.ignores_delay());
}

TEST_F(DelayTest, IgnoresDelayUntilTheNextPauseBesideTcp) {
  grow_to(200'000);
  pause_with(milliseconds(1));
  for (int i = 0; i < 10'000 && !control_.is_pausing(); ++i) {
    round(milliseconds(2));
    ASSERT_TRUE(control_.ignores_delay());
  }
  EXPECT_TRUE(control_.is_pausing());
}

TEST_F(DelayTest, ABurstOfLossesIsOneSignOfCongestionBesideTcp) {
  grow_to(200'000);
  pause_with(milliseconds(1));
  for (int i = 0; i < 20; ++i) round(milliseconds(2));
  const uint32_t before = control_.window();
  lose(30 * Delay::kPacketBytes);
  EXPECT_EQ(control_.window(), uint64_t{before} * 7 / 10);
  round(milliseconds(2));
  const uint32_t after = control_.window();
  for (int i = 0; i < 10; ++i) round(milliseconds(2));
  EXPECT_GT(control_.window(), after + 10u * 500) << "many lost packets are not many flows";
}

TEST_F(DelayTest, AShorterRoundTripThanEverInAPauseOfALongPathShowsAQueueOfOthers) {
  for (const bool is_shorter : {false, true}) {
    control_ = Delay();
    const Duration path = milliseconds(10);
    for (int i = 0; i < 6; ++i) round(path);
    for (int i = 0; i < 200 && !control_.is_pausing(); ++i) round(path + milliseconds(2));
    ASSERT_TRUE(control_.is_pausing()) << "for the first time after 32 round trips";
    now_ = now_ + milliseconds(12);
    control_.on_round_trip(is_shorter ? milliseconds(8) : path, now_);
    now_ = now_ + milliseconds(20);
    control_.on_acked({.bytes = 1, .in_flight = 1, .now = now_});
    ASSERT_FALSE(control_.is_pausing());
    EXPECT_EQ(control_.ignores_delay(), is_shorter);
  }
}

TEST_F(DelayTest, PausesAtOnceWhenDelayStaysAlthoughTheWindowHasShrunk) {
  grow_to(200'000);
  const uint32_t before = control_.window();
  int rounds = 0;
  while (!control_.is_pausing() && ++rounds < 50) round(kEmptyPath + milliseconds(5));
  ASSERT_TRUE(control_.is_pausing());
  now_ = now_ + milliseconds(6);
  control_.on_round_trip(kEmptyPath, now_);  // all flows pause
  now_ = now_ + milliseconds(10);
  control_.on_acked({.bytes = 1, .in_flight = 1, .now = now_});
  ASSERT_FALSE(control_.is_pausing());
  EXPECT_FALSE(control_.ignores_delay());
  EXPECT_LE(control_.window(), before / 4) << "the queue was that of Verbenas";
}

TEST_F(DelayTest, GrowsByAPartOfItselfOnlyWhenTheOthersHaveNotJustPaused) {
  grow_to(100'000);
  for (int i = 0; i < 300; ++i) round(kEmptyPath + microseconds(450));
  const uint32_t before = control_.window();
  for (int i = 0; i < 80; ++i) round(kEmptyPath);  // 8 ms
  EXPECT_LT(control_.window(), before + before / 4);
  for (int i = 0; i < 160; ++i) round(kEmptyPath);
  EXPECT_GT(control_.window(), before * 2);
}

TEST_F(DelayTest, JitterOfALongPathIsNoQueue) {
  const Duration path = milliseconds(10);
  for (int i = 0; i < 6; ++i) round(path);
  const uint32_t before = control_.window();
  for (int i = 0; i < 20; ++i) round(path + milliseconds(1));
  EXPECT_GT(control_.window(), before);
}

TEST_F(DelayTest, DoesNotPauseOnAShortPath) {
  grow_to(200'000);
  for (int i = 0; i < 50'000; ++i) {
    round(microseconds(150));
    ASSERT_FALSE(control_.is_pausing());
  }
}

TEST_F(DelayTest, ATimeoutHalvesTheWindow) {
  const uint32_t before = control_.window();
  control_.on_timed_out(now_);
  EXPECT_EQ(control_.window(), before / 2);
}

}  // namespace
}  // namespace verbena::core
