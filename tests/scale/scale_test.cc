// The engine on ns-3: small networks, for seconds. `make scale` runs the large ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "bench/scale/flows.h"
#include "bench/scale/network.h"
#include "bench/scale/run.h"
#include "ns3/simulator.h"

namespace verbena::scale {
namespace {

RunShape small_incast() { return {.senders = 8, .bytes = 300'000}; }

RunShape small_fat_tree() {
  RunShape shape{.scenario = "fat-tree", .load = 0.5, .flows = 20};
  shape.tree = {
      .pods = 2, .tors_per_pod = 2, .aggs_per_pod = 2, .cores_per_agg = 2, .hosts_per_tor = 4};
  return shape;
}

TEST(Scale, AnIncastEndsNearTheOptimum) {
  const RunResult result = run(small_incast());
  EXPECT_EQ(result.failed, 0u);
  EXPECT_LT(result.last_ns, result.optimum_ns * 11 / 10);
  EXPECT_GT(result.last_ns, result.optimum_ns * 95 / 100);
}

TEST(Scale, MarksOfTheNetworkReachTheEngine) {
  RunShape shape = small_incast();
  EXPECT_GT(run(shape).ecn_marked, 0u);
  shape.transport = "off";  // packets are not ECN-capable
  EXPECT_EQ(run(shape).ecn_marked, 0u);
}

TEST(Scale, DroppedPacketsAreRetransmittedByDeadlinesOfNs3) {
  RunShape shape = small_incast();
  shape.queues = {.mark_bytes_per_gbps = 300, .bytes_per_gbps = 400};
  const RunResult result = run(shape);
  EXPECT_GT(result.network.dropped, 0u);
  EXPECT_GT(result.retransmitted, 0u);
  EXPECT_EQ(result.failed, 0u);
}

TEST(Scale, TheSameSeedGivesTheSameTimes) {
  RunShape shape = small_fat_tree();
  const auto times = [&] {
    std::vector<int64_t> found;
    for (const FlowTime& flow : run(shape).flows) found.push_back(flow.ns);
    return found;
  };
  const std::vector<int64_t> first = times();
  EXPECT_EQ(times(), first);
  shape.seed = 2;
  EXPECT_NE(times(), first);
}

TEST(Scale, TcpCarriesTheSameFlows) {
  for (const char* tcp : {"dctcp", "cubic"}) {
    RunShape shape = small_fat_tree();
    shape.transport = tcp;
    const RunResult result = run(shape);
    EXPECT_EQ(result.failed, 0u) << tcp;
    for (const FlowTime& flow : result.flows) EXPECT_GE(flow.ns, flow.fastest_ns * 9 / 10) << tcp;
  }
}

TEST(Scale, NoFlowIsFasterThanItsPath) {
  for (const FlowTime& flow : run(small_fat_tree()).flows) {
    EXPECT_GE(flow.ns, flow.fastest_ns * 99 / 100);
  }
}

TEST(Scale, TheMeanOfWebSearchIsThatOfItsDistribution) {
  double sum = 0;
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) {
    sum += static_cast<double>(WebSearch::bytes_at((i + 0.5) / kDraws));
  }
  EXPECT_NEAR(sum / kDraws, WebSearch::mean_bytes(), WebSearch::mean_bytes() / 100);
  EXPECT_NEAR(WebSearch::mean_bytes(), 1.71e6, 1e4);
}

TEST(Scale, TheFatTreeHasFullBisection) {
  const FatTree tree;
  EXPECT_EQ(tree.hosts(), 320u);
  EXPECT_EQ(tree.hosts_per_tor * tree.host_gbps, tree.aggs_per_pod * tree.switch_gbps);
  EXPECT_EQ(tree.tors_per_pod * tree.switch_gbps, tree.cores_per_agg * tree.switch_gbps);
}

}  // namespace
}  // namespace verbena::scale
