// The list of congestion control algorithms.
#include "core/congestion/congestion_control.h"

#include <gtest/gtest.h>

#include "core/congestion/delay.h"
#include "core/congestion/fixed_window.h"
#include "core/engine.h"

namespace verbena::core {
namespace {

TEST(CongestionControl, TheDefaultIsDelay) {
  const auto control = kDefaultCongestionAlgorithm.make();
  EXPECT_NE(dynamic_cast<Delay*>(control.get()), nullptr);
}

TEST(CongestionControl, EveryAlgorithmHasANameAMeaningAndAWindow) {
  for (const CongestionAlgorithm& algorithm : kCongestionAlgorithms) {
    EXPECT_NE(algorithm.name, "");
    EXPECT_NE(algorithm.meaning, "") << algorithm.name;
    EXPECT_GT(algorithm.make()->window(), 0u) << algorithm.name;
  }
}

TEST(CongestionControl, APathUsesTheAlgorithmOfItsEngine) {
  for (const CongestionAlgorithm& algorithm : kCongestionAlgorithms) {
    Engine engine({.congestion = &algorithm});
    CompletionQueue cq(8);
    QpConfig config;
    config.send_cq = config.receive_cq = &cq;
    QueuePair& qp = *engine.create_qp(config).value();
    QpAttributes attr;
    attr.state = QpState::Init;
    engine.modify_qp(qp, attr, qp_attr::kState, Instant{});
    attr.state = QpState::Rtr;
    attr.dest_qpn = wire::Qpn::of_slot(2, 7);
    engine.modify_qp(qp, attr, qp_attr::kState | qp_attr::kDestQpn | qp_attr::kAddressVector,
                     Instant{});
    ASSERT_NE(qp.peer(), nullptr);
    EXPECT_EQ(qp.peer()->window(), algorithm.make()->window()) << algorithm.name;
  }
}

TEST(CongestionControl, DelayIsNoSignalWithinAHost) {
  for (const CongestionAlgorithm& algorithm : kCongestionAlgorithms) {
    const std::string_view expected = algorithm.name == "delay" ? "aimd" : algorithm.name;
    EXPECT_EQ(within_host(algorithm).name, expected);
  }
}

TEST(FixedWindow, StaysTheSameAfterEveryEvent) {
  FixedWindow control;
  control.on_acked({.bytes = 10 * FixedWindow::kWindow});
  control.on_lost({.bytes = 1000, .discarded = true, .episode = {.window = FixedWindow::kWindow}});
  control.on_timed_out(Instant{});
  control.on_cnp(Instant{});
  control.on_round_trip(seconds(1), Instant{});
  EXPECT_EQ(control.window(), FixedWindow::kWindow);
  EXPECT_EQ(control.pacing_rate(), CongestionControl::kUnpaced);
}

}  // namespace
}  // namespace verbena::core
