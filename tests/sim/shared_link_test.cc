// How flows share a bottleneck: utilisation, fairness, queue length, drops, and TCP beside them.
#include "sim/shared_link_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace verbena::sim {
namespace {

constexpr uint64_t kSeeds[] = {1, 2, 3};

void expect_nobody_starves(const SharedLinkResult& r) {
  EXPECT_EQ(r.failed, 0u);
  const double fair = r.utilisation / static_cast<double>(r.shares.size());
  EXPECT_GT(*std::ranges::min_element(r.shares), fair / 4);
}

TEST(SharedLink, OneFlowFillsALinkAndKeepsItsQueueShort) {
  for (const uint64_t seed : kSeeds) {
    const auto r = run_shared_link(seed, {});
    EXPECT_GT(r.utilisation, 0.97);
    EXPECT_LT(r.median_queue, 100'000u);
    EXPECT_EQ(r.dropped, 0);
  }
}

TEST(SharedLink, OneFlowFillsALongPath) {
  for (const uint64_t seed : kSeeds) {
    const auto r = run_shared_link(seed, {.bottleneck = {.queue_bytes = 1'500'000},
                                          .delay = milliseconds(5),
                                          .warm_up = milliseconds(1500)});
    EXPECT_GT(r.utilisation, 0.95);
  }
}

TEST(SharedLink, BusyHostsAreNoCongestion) {
  for (const uint64_t seed : kSeeds) {
    const auto r = run_shared_link(
        seed,
        {.bottleneck = {.queue_bytes = 1'500'000}, .delay = milliseconds(5), .busy_hosts = true});
    EXPECT_GT(r.utilisation, 0.8);
  }
}

TEST(SharedLink, ALongPathWithLossesKeepsAThirdOfTheLink) {
  for (const uint64_t seed : kSeeds) {
    const auto r = run_shared_link(
        seed, {.bottleneck = {.queue_bytes = 1'500'000}, .delay = milliseconds(5), .loss = 0.001});
    EXPECT_GT(r.utilisation, 0.33);
  }
}

TEST(SharedLink, SixteenFlowsShareFairlyAndLoseLittle) {
  for (const uint64_t seed : kSeeds) {
    const auto r = run_shared_link(seed, {.senders = 16, .measured = milliseconds(4000)});
    EXPECT_GT(r.utilisation, 0.95);
    EXPECT_GT(r.jain, 0.95);
    EXPECT_LT(r.dropped, 0.01);
    expect_nobody_starves(r);
  }
}

TEST(SharedLink, FortyEightFlowsWithoutEcnLoseLittle) {
  const auto r = run_shared_link(1, {.senders = 48});
  EXPECT_GT(r.utilisation, 0.95);
  EXPECT_GT(r.jain, 0.9);
  EXPECT_LT(r.dropped, 0.02);
  expect_nobody_starves(r);
}

TEST(SharedLink, FortyEightFlowsWithEcnLoseNothing) {
  const auto r = run_shared_link(1, {.bottleneck = {.mark_bytes = 60'000}, .senders = 48});
  EXPECT_GT(r.utilisation, 0.95);
  EXPECT_GT(r.jain, 0.95);
  EXPECT_EQ(r.dropped, 0);
  EXPECT_LT(r.median_queue, 100'000u);
  expect_nobody_starves(r);
}

TEST(SharedLink, BesideTcpBothGetTheirShareOfAShortQueue) {
  for (const uint64_t seed : kSeeds) {
    const auto r = run_shared_link(
        seed, {.tcp_flows = 1, .warm_up = milliseconds(2000), .measured = milliseconds(4000)});
    EXPECT_GT(r.shares[0], 0.35);
    EXPECT_GT(r.tcp_shares[0], 0.35);
  }
}

TEST(SharedLink, AFlowThatStartsIntoTcpsShortQueueGetsItsShare) {
  for (const uint64_t seed : kSeeds) {
    const auto r = run_shared_link(seed, {.tcp_flows = 1,
                                          .senders_start = milliseconds(500),
                                          .warm_up = milliseconds(2500),
                                          .measured = milliseconds(4000)});
    EXPECT_GT(r.shares[0], 0.35);
    EXPECT_GT(r.tcp_shares[0], 0.35);
  }
}

// A second TCP flow gets 0.31 to 0.37 of the link here.
TEST(SharedLink, AFlowThatStartsIntoTcpsDeepQueueGetsAFifthSoon) {
  for (const Duration start : {milliseconds(100), milliseconds(500), milliseconds(1500)}) {
    const auto r = run_shared_link(1, {.bottleneck = {.queue_bytes = 1'500'000},
                                       .tcp_flows = 1,
                                       .senders_start = start,
                                       .warm_up = start + milliseconds(2000),
                                       .measured = milliseconds(4000)});
    EXPECT_GT(r.shares[0], 0.2);
    EXPECT_GT(r.tcp_shares[0], 0.35);
  }
}

}  // namespace
}  // namespace verbena::sim
