// The list of congestion control algorithms.
#include "core/congestion/congestion_control.h"

#include <gtest/gtest.h>

#include "core/congestion/aimd.h"
#include "core/congestion/fixed_window.h"

namespace verbena::core {
namespace {

TEST(CongestionControl, IsCreatedByAlgorithm) {
  const auto aimd = make_congestion_control(CongestionAlgorithm::Aimd);
  const auto fixed = make_congestion_control(CongestionAlgorithm::FixedWindow);
  EXPECT_NE(dynamic_cast<Aimd*>(aimd.get()), nullptr);
  EXPECT_NE(dynamic_cast<FixedWindow*>(fixed.get()), nullptr);
}

TEST(CongestionControl, IsFoundByName) {
  EXPECT_EQ(find_congestion_algorithm("aimd"), CongestionAlgorithm::Aimd);
  EXPECT_EQ(find_congestion_algorithm("off"), CongestionAlgorithm::FixedWindow);
  EXPECT_EQ(find_congestion_algorithm("no such algorithm"), std::nullopt);
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
