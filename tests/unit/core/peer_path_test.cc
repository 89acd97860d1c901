// The bytes in flight to a peer, and which congestion control its path has.
#include "core/peer_path.h"

#include <gtest/gtest.h>

#include "core/congestion/aimd.h"

namespace verbena::core {
namespace {

constexpr Instant kNow{1'000'000};

TEST(PeerPath, HasRoomUntilTheWindowIsInFlight) {
  PeerPath path;
  EXPECT_TRUE(path.has_room());
  EXPECT_TRUE(path.is_idle());
  path.on_sent(path.window());
  EXPECT_FALSE(path.has_room());
  EXPECT_EQ(path.room(), 0u);
  path.on_acked(1000, false, kNow);
  EXPECT_TRUE(path.has_room());
  EXPECT_EQ(path.in_flight(), Aimd::kInitialWindow - 1000);
}

TEST(PeerPath, NeverCountsBelowZero) {
  PeerPath path;
  path.on_sent(10);
  path.release(100);
  EXPECT_TRUE(path.is_idle());
}

TEST(PeerPath, UpdatesTheWindowAfterEachEvent) {
  PeerPath path;
  for (uint32_t acked = 0; acked < Aimd::kInitialWindow; acked += 1024)
    path.on_acked(1024, false, kNow);
  EXPECT_EQ(path.window(), Aimd::kInitialWindow + Aimd::kIncrease);
  path.on_timed_out(kNow);
  const uint32_t after_timeout = path.window();
  EXPECT_LT(after_timeout, Aimd::kInitialWindow);
  path.on_lost({.bytes = 4096, .episode = {.window = after_timeout}});
  EXPECT_EQ(path.window(), after_timeout - 2 * 4096);
}

TEST(PeerPath, ReleasedBytesDoNotIncreaseTheWindow) {
  PeerPath path;
  path.on_sent(2 * Aimd::kInitialWindow);
  path.release(2 * Aimd::kInitialWindow);
  EXPECT_EQ(path.window(), Aimd::kInitialWindow);
}

TEST(PeerPath, MeasuresTheRoundTrip) {
  PeerPath path;
  path.on_round_trip(microseconds(70), kNow);
  EXPECT_EQ(path.round_trip.smoothed(), microseconds(70));
}

TEST(PeerPath, HasAFixedWindowInSharedMemory) {
  PeerPath path;
  path.use_shared_memory();
  EXPECT_TRUE(path.is_in_memory());
  path.on_timed_out(kNow);
  path.on_lost({.bytes = 4096, .discarded = true, .episode = {.window = path.window()}});
  path.on_acked(10 * FixedWindow::kWindow, false, kNow);
  EXPECT_EQ(path.window(), FixedWindow::kWindow);
}

TEST(PeerPath, RestartsCongestionControlWhenItReturnsToTheWire) {
  PeerPath path;
  path.on_timed_out(kNow);
  ASSERT_LT(path.window(), Aimd::kInitialWindow);
  path.use_shared_memory();
  path.use_wire();
  EXPECT_FALSE(path.is_in_memory());
  EXPECT_EQ(path.window(), Aimd::kInitialWindow);
}

TEST(PeerPath, UsesTheGivenAlgorithmOnTheWire) {
  for (const CongestionAlgorithm& algorithm : kCongestionAlgorithms) {
    PeerPath path(algorithm);
    EXPECT_EQ(path.window(), algorithm.make()->window()) << algorithm.name;
    path.use_shared_memory();
    path.use_wire();
    EXPECT_EQ(path.window(), algorithm.make()->window()) << algorithm.name;
  }
}

TEST(PeerPath, KeepsBytesInFlightWhenTheMediumChanges) {
  PeerPath path;
  path.on_sent(5000);
  path.use_shared_memory();
  EXPECT_EQ(path.in_flight(), 5000u);
  path.use_wire();
  EXPECT_EQ(path.in_flight(), 5000u);
}

TEST(PeerPath, IsUnresponsiveUntilTheGivenTime) {
  PeerPath path;
  EXPECT_FALSE(path.is_unresponsive(kNow));
  path.unresponsive_until = kNow + milliseconds(1);
  EXPECT_TRUE(path.is_unresponsive(kNow));
  EXPECT_FALSE(path.is_unresponsive(kNow + milliseconds(1)));
}

}  // namespace
}  // namespace verbena::core
