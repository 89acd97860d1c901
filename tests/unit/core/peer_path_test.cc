// The bytes in flight to a peer, and which congestion control its path has.
#include "core/peer_path.h"

#include <gtest/gtest.h>

#include "core/congestion/aimd.h"

namespace verbena::core {
namespace {

constexpr Instant kNow{1'000'000};
constexpr CongestionAlgorithm kAimdOnWire{"aimd", "", make_aimd};

TEST(PeerPath, HasRoomUntilTheWindowIsInFlight) {
  PeerPath path(kAimdOnWire);
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
  PeerPath path(kAimdOnWire);
  path.on_sent(10);
  path.release(100);
  EXPECT_TRUE(path.is_idle());
}

TEST(PeerPath, UpdatesTheWindowAfterEachEvent) {
  PeerPath path(kAimdOnWire);
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
  PeerPath path(kAimdOnWire);
  path.on_sent(2 * Aimd::kInitialWindow);
  path.release(2 * Aimd::kInitialWindow);
  EXPECT_EQ(path.window(), Aimd::kInitialWindow);
}

TEST(PeerPath, MeasuresTheRoundTrip) {
  PeerPath path(kAimdOnWire);
  path.on_round_trip(microseconds(70), kNow);
  EXPECT_EQ(path.round_trip.smoothed(), microseconds(70));
}

TEST(PeerPath, HasAFixedWindowInSharedMemory) {
  PeerPath path(kAimdOnWire);
  path.use_shared_memory();
  EXPECT_TRUE(path.is_in_memory());
  path.on_timed_out(kNow);
  path.on_lost({.bytes = 4096, .discarded = true, .episode = {.window = path.window()}});
  path.on_acked(10 * FixedWindow::kWindow, false, kNow);
  EXPECT_EQ(path.window(), FixedWindow::kWindow);
}

TEST(PeerPath, RestartsCongestionControlWhenItReturnsToTheWire) {
  PeerPath path(kAimdOnWire);
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
  PeerPath path(kAimdOnWire);
  path.on_sent(5000);
  path.use_shared_memory();
  EXPECT_EQ(path.in_flight(), 5000u);
  path.use_wire();
  EXPECT_EQ(path.in_flight(), 5000u);
}

TEST(PeerPath, IsUnresponsiveUntilTheGivenTime) {
  PeerPath path(kAimdOnWire);
  EXPECT_FALSE(path.is_unresponsive(kNow));
  path.unresponsive_until = kNow + milliseconds(1);
  EXPECT_TRUE(path.is_unresponsive(kNow));
  EXPECT_FALSE(path.is_unresponsive(kNow + milliseconds(1)));
}

// --- pacing ---

// Paces at 1 MB/s and has a window of 10 packets.
class Paced final : public CongestionControl {
 public:
  Paced() : CongestionControl(12'800) { pacing_rate_ = 1'000'000; }
  void on_acked(const AckEvent&) override {}
  void on_lost(const LossEvent&) override {}
  void on_timed_out(Instant) override {}
  void on_cnp(Instant) override {}
  void on_round_trip(Duration, Instant) override {}
};
constexpr CongestionAlgorithm kPaced{
    "paced", "", []() -> std::unique_ptr<CongestionControl> { return std::make_unique<Paced>(); }};

TEST(PeerPath, IsShutAfterAPacketUntilTheRateAllowsTheNext) {
  PeerPath path(kPaced);
  path.on_sent(1000);
  EXPECT_FALSE(path.has_room()) << "although the window is larger";
  path.reopen_if_due(kNow);  // the burst began long ago
  EXPECT_TRUE(path.has_room());
  path.on_sent(1000);
  EXPECT_EQ(path.reopens_at(), kNow + milliseconds(1));
  path.reopen_if_due(kNow + microseconds(999));
  EXPECT_FALSE(path.has_room());
  path.reopen_if_due(kNow + milliseconds(1));
  EXPECT_TRUE(path.has_room());
}

TEST(PeerPath, EachPacketOfAPacedPathAsksForAnAck) {
  PeerPath path(kPaced);
  EXPECT_TRUE(path.fills(1000));
  EXPECT_FALSE(PeerPath(kAimdOnWire).fills(1000));
  EXPECT_TRUE(PeerPath(kAimdOnWire).fills(Aimd::kInitialWindow));
}

}  // namespace
}  // namespace verbena::core
