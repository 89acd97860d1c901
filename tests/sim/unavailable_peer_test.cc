// A peer that has no receive posted, cannot be reached, or does not run.
#include <gtest/gtest.h>

#include "core/requester.h"
#include "tests/sim/pair_support.h"

namespace verbena::sim {
namespace {

using core::CounterId;
using core::WcStatus;
using wire::Verb;

TEST(UnavailablePeer, RnrNaksEndWhenReceivesArePosted) {
  Pair p({.mtu = wire::Mtu::k256, .min_rnr_timer = 1}, {.depth = 64});
  for (uint64_t i = 0; i < 32; ++i) p.send(i, 100000 + i * 1000, 1000);
  // Receives are posted one at a time, slower than the sender sends.
  for (uint64_t i = 0; i < 32; ++i) {
    p.world.after(microseconds(static_cast<int64_t>(i * 300)),
                  [&p, i] { p.receive(1000 + i, i * 1000, 1000); });
  }
  p.run_until_idle();
  const auto sent = p.poll_a();
  const auto received = p.poll_b();
  ASSERT_EQ(sent.size(), 32u);
  ASSERT_EQ(received.size(), 32u);
  for (uint64_t i = 0; i < 32; ++i) {
    EXPECT_EQ(sent[i].status, WcStatus::Success);
    EXPECT_EQ(received[i].wr_id, 1000 + i);
  }
  EXPECT_TRUE(equal(p.rb.at(0, 32000), p.ra.at(100000, 32000)));
  EXPECT_GT(p.counter_b(CounterId::rnr_naks_sent), 50u);
  EXPECT_EQ(p.counter_a(CounterId::timeouts), 0u);
}

TEST(UnavailablePeer, RecoversALostRnrNak) {
  Pair p;
  p.drop_first([](HostId from, const auto& q) { return from == kB && is_verb(q, Verb::Ack); });
  p.send(1, 8192, 64);
  p.world.after(microseconds(500), [&p] { p.receive(2, 0, 64); });
  p.run_until_idle();
  ASSERT_EQ(p.poll_a().size(), 1u);
  EXPECT_EQ(p.poll_b().size(), 1u);
}

TEST(UnavailablePeer, PartitionExhaustsExactlyTheRetries) {
  for (const uint8_t retries : {uint8_t{0}, uint8_t{2}, uint8_t{7}}) {
    Pair p({.timeout = 8, .retry_count = retries});  // 1.05 ms
    p.world.network().link(kA, kB).partitioned = true;
    p.write(1, 0, 100);
    p.write(2, 0, 100);
    const Instant start = p.world.now();
    Instant failed = kNever;
    while (p.world.step()) {
      if (failed == kNever && !p.cq_a.empty()) failed = p.world.now();
    }
    p.run_until_idle();
    const auto done = p.poll_a();
    ASSERT_EQ(done.size(), 2u);
    EXPECT_EQ(done[0].status, WcStatus::RetryExceeded);
    EXPECT_EQ(done[1].status, WcStatus::Flushed);
    EXPECT_EQ(p.counter_a(CounterId::timeouts), retries + 1u);
    const Duration expected = core::ack_timeout(8) * (retries == 0 ? 1 : 3 + 4 * (retries - 1));
    EXPECT_GE(failed - start, expected);
    EXPECT_LT(failed - start, expected + microseconds(50));
    EXPECT_EQ(p.qa.state(), core::QpState::Error);
    EXPECT_EQ(p.qb.state(), core::QpState::Rts);
    ASSERT_EQ(p.a.failures.size(), 1u);
    EXPECT_EQ(p.a.failures[0].wr_id, 1u);
  }
}

TEST(UnavailablePeer, RecoversFromAShortPartition) {
  Pair p({.timeout = 8, .retry_count = 7});
  p.world.network().link(kA, kB).partitioned = true;
  p.world.after(milliseconds(6), [&p] { p.world.network().link(kA, kB).partitioned = false; });
  p.write(1, 0, 50000);
  p.run_until_idle();
  const auto done = p.poll_a();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::Success);
  EXPECT_TRUE(equal(p.rb.at(0, 50000), p.ra.at(0, 50000)));
}

TEST(UnavailablePeer, WaitsForAPausedPeer) {
  Pair p({.timeout = 10});
  p.b.set_paused(true);
  p.write(1, 0, 10000);
  p.world.after(milliseconds(10), [&p] { p.b.set_paused(false); });
  p.run_until_idle();
  const auto done = p.poll_a();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::Success);
}

}  // namespace
}  // namespace verbena::sim
