// The list of congestion control algorithms.
#include "core/congestion/congestion_control.h"

#include <gtest/gtest.h>

#include "core/congestion/aimd.h"
#include "core/congestion/fixed_window.h"

namespace verbena::core {
namespace {

TEST(CongestionControl, TheDefaultIsAimd) {
  const auto control = kDefaultCongestionAlgorithm.make();
  EXPECT_NE(dynamic_cast<Aimd*>(control.get()), nullptr);
}

TEST(CongestionControl, EveryAlgorithmHasANameAMeaningAndAWindow) {
  for (const CongestionAlgorithm& algorithm : kCongestionAlgorithms) {
    EXPECT_NE(algorithm.name, "");
    EXPECT_NE(algorithm.meaning, "") << algorithm.name;
    EXPECT_GT(algorithm.make()->window(), 0u) << algorithm.name;
  }
}

TEST(FixedWindow, StaysTheSameAfterEveryEvent) {
  FixedWindow control;
  control.on_acked(10 * FixedWindow::kWindow, Instant{});
  control.on_lost({.bytes = 1000, .discarded = true, .episode = {.window = FixedWindow::kWindow}});
  control.on_timed_out(Instant{});
  control.on_marked(Instant{});
  control.on_round_trip(seconds(1), Instant{});
  EXPECT_EQ(control.window(), FixedWindow::kWindow);
  EXPECT_EQ(control.pacing_rate(), CongestionControl::kUnpaced);
}

}  // namespace
}  // namespace verbena::core
