// Additive increase, multiplicative decrease.
#include "core/congestion/aimd.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

constexpr Instant kNow{1'000'000};
constexpr uint32_t kQuarter = Aimd::kInitialWindow / 4;

// Losses of one episode, as loss recovery reports them.
class Episode {
 public:
  explicit Episode(Aimd& control) : control_(control), episode_{.window = control.window()} {}
  void lose(uint32_t bytes, bool discarded) {
    control_.on_lost({.bytes = bytes, .discarded = discarded, .now = kNow, .episode = episode_});
    episode_.bytes_lost += bytes;
    episode_.discarded |= discarded;
  }

 private:
  Aimd& control_;
  LossEpisode episode_;
};

TEST(Aimd, GrowsByOneStepForEachAcknowledgedWindow) {
  Aimd control;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(control.window(), Aimd::kInitialWindow);
    control.on_acked({.bytes = control.window() / 3 + 1, .now = kNow});
  }
  EXPECT_EQ(control.window(), Aimd::kInitialWindow + Aimd::kIncrease);
}

TEST(Aimd, DoesNotGrowBeyondItsMaximum) {
  Aimd control;
  for (int i = 0; i < 1000; ++i) control.on_acked({.bytes = control.window(), .now = kNow});
  EXPECT_EQ(control.window(), Aimd::kMaxWindow);
}

TEST(Aimd, ShrinksByAQuarterOnATimeout) {
  Aimd control;
  control.on_timed_out(kNow);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow - kQuarter);
}

TEST(Aimd, DoesNotShrinkBelowItsMinimum) {
  Aimd control;
  for (int i = 0; i < 100; ++i) control.on_timed_out(kNow);
  EXPECT_EQ(control.window(), Aimd::kMinWindow);
  Episode(control).lose(4096, true);
  EXPECT_EQ(control.window(), Aimd::kMinWindow);
}

TEST(Aimd, ShrinksByTwiceTheBytesLostWithSelectiveRepeat) {
  Aimd control;
  Episode episode(control);
  episode.lose(1000, false);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow - 2000);
  episode.lose(500, false);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow - 3000);
}

TEST(Aimd, ShrinksByAQuarterAtMostInOneEpisode) {
  Aimd control;
  Episode episode(control);
  for (int i = 0; i < 100; ++i) episode.lose(4096, false);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow - kQuarter);
}

TEST(Aimd, ShrinksByAQuarterAtOnceIfThePeerDiscardsPacketsBehindAGap) {
  Aimd control;
  Episode episode(control);
  episode.lose(1000, true);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow - kQuarter);
  episode.lose(1000, true);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow - kQuarter);
}

TEST(Aimd, ShrinksByTheRestOfTheQuarterIfThePeerDiscardsLater) {
  Aimd control;
  Episode episode(control);
  episode.lose(1000, false);
  episode.lose(1000, true);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow - kQuarter);
  episode.lose(1000, false);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow - kQuarter);
}

TEST(Aimd, ShrinksAgainInTheNextEpisode) {
  Aimd control;
  Episode(control).lose(1000, true);
  const uint32_t after_first = control.window();
  Episode(control).lose(1000, true);
  EXPECT_EQ(control.window(), after_first - after_first / 4);
}

TEST(Aimd, AcknowledgedBytesBeforeALossDoNotCountTowardsGrowth) {
  Aimd control;
  control.on_acked({.bytes = Aimd::kInitialWindow - 1, .now = kNow});
  control.on_timed_out(kNow);
  control.on_acked({.bytes = 1, .now = kNow});
  EXPECT_EQ(control.window(), Aimd::kInitialWindow - kQuarter);
}

TEST(Aimd, IgnoresEcnMarksAndRoundTripsAndDoesNotPace) {
  Aimd control;
  control.on_cnp(kNow);
  control.on_acked({.bytes = 1000, .now = kNow});
  control.on_round_trip(seconds(1), kNow);
  EXPECT_EQ(control.window(), Aimd::kInitialWindow);
  EXPECT_EQ(control.pacing_rate(), CongestionControl::kUnpaced);
}

}  // namespace
}  // namespace verbena::core
