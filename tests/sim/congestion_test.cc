// Queues that overflow, and queue pairs that share one congestion window.
#include <gtest/gtest.h>

#include "tests/sim/pair_support.h"

namespace verbena::sim {
namespace {

using core::CounterId;

// The READ responses overflow the queue of the link. The requester requests the lost ones again.
TEST(Congestion, ReadCompletesAlthoughAShortQueueDropsResponses) {
  Pair p({.mtu = wire::Mtu::k4096, .read_depth_a = 16}, {}, 4 << 20);
  auto& link = p.world.network().link(kB, kA);
  link.bits_per_second = 1000000000;
  link.queue_bytes = 60000;
  for (uint64_t i = 0; i < 4; ++i) p.read(i, i << 20, 1 << 20);
  p.run_until_idle();
  ASSERT_EQ(p.poll_a().size(), 4u);
  EXPECT_TRUE(equal(p.ra.bytes, p.rb.bytes));
  EXPECT_EQ(p.counter_b(CounterId::duplicate_dropped), 0u);
}

TEST(Congestion, WindowShrinksUntilWritesFitAShortQueue) {
  Pair p({.mtu = wire::Mtu::k4096}, {}, 4 << 20);
  auto& link = p.world.network().link(kA, kB);
  link.bits_per_second = 1000000000;
  link.queue_bytes = 60000;
  for (uint64_t i = 0; i < 4; ++i) p.write(i, i << 20, 1 << 20);
  p.run_until_idle();
  ASSERT_EQ(p.poll_a().size(), 4u);
  EXPECT_TRUE(equal(p.ra.bytes, p.rb.bytes));
  EXPECT_LT(p.qa.peer()->window(), 100'000u);
}

TEST(Congestion, ManyQueuePairsShareOneWindowFairly) {
  Pair p({.mtu = wire::Mtu::k4096}, {.depth = 8}, 1 << 20);
  p.world.network().link(kA, kB).bits_per_second = 10000000000;
  constexpr int kPairs = 8;
  std::vector<core::QueuePair*> qps;
  for (int i = 0; i < kPairs; ++i) {
    qps.push_back(&p.a.create_qp(p.cq_a, p.cq_a, {.depth = 8}));
    core::QueuePair& peer = p.b.create_qp(p.cq_b, p.cq_b, {.depth = 8});
    connect(p.a, *qps.back(), p.b, peer, {.mtu = wire::Mtu::k4096});
  }
  const core::Sge sge = p.sge_a(0, 512 * 1024);
  for (uint64_t i = 0; i < kPairs; ++i) {
    core::SendRequest r;
    r.op = core::SendOp::Write;
    r.wr_id = i;
    r.flags = core::kSignaled;
    r.sges = {&sge, 1};
    r.rkey = p.rb.key;
    r.remote_address = p.rb.iova;
    ASSERT_TRUE(p.a.post_send(*qps[i], r).ok());
  }
  Instant first = kNever, last{};
  size_t completed = 0;
  while (p.world.step()) {
    if (p.cq_a.size() == completed) continue;
    completed = p.cq_a.size();
    first = std::min(first, p.world.now());
    last = p.world.now();
  }
  p.run_until_idle();
  EXPECT_EQ(completed, static_cast<size_t>(kPairs));
  // All queue pairs have equal work and take turns: the first completes only shortly before the
  // last.
  EXPECT_GT(first.ns * 10, last.ns * 7);
  EXPECT_EQ(p.counter_a(CounterId::retransmitted_packets), 0u);
}

}  // namespace
}  // namespace verbena::sim
