// Links through shared memory, step by step: one-sided access, retraction, and the fallback to the
// wire when a link ends.
#include <gtest/gtest.h>

#include "core/loss_recovery.h"
#include "tests/sim/pair_support.h"

namespace verbena::sim {
namespace {

using core::CounterId;
using core::WcStatus;

struct MemoryPair : Pair {
  explicit MemoryPair(const MemoryLinkShape& link = {})
      : Pair({.mtu = wire::Mtu::k1024}, {}, 1 << 20, link) {}
  void end_link() {
    a.on_link_end(kB);
    b.on_link_end(kA);
  }
};

TEST(SharedMemory, SendsLargePacketsAndNoneOnTheWire) {
  MemoryPair p({.reachable = false});
  p.write(1, 0, 100'000);
  p.run_until_idle();
  ASSERT_EQ(p.poll_a().size(), 1u);
  EXPECT_TRUE(equal(p.rb.at(0, 100'000), p.ra.at(0, 100'000)));
  EXPECT_EQ(p.world.network().counts().sent, 0u);
  EXPECT_EQ(p.world.memory().counts().packets, 3u) << "two packets, one ACK";
}

TEST(SharedMemory, UsesOneSidedAccessToASleepingPeer) {
  MemoryPair p;
  p.run_until_idle();
  p.world.memory().set_asleep(kB, true);
  p.write(1, 0, 100'000);
  p.run_until_idle();
  ASSERT_EQ(p.poll_a().size(), 1u);
  EXPECT_TRUE(equal(p.rb.at(0, 100'000), p.ra.at(0, 100'000)));
  EXPECT_EQ(p.world.memory().counts().packets, 0u);
  EXPECT_EQ(p.counter_a(CounterId::one_sided_writes), 1u);
}

TEST(SharedMemory, RetractsAWriteThatAStoppedPeerDidNotRead) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    MemoryPair p;
    p.world.run_for(microseconds(attempt));  // varies whether the peer has begun to read its ring
    p.b.set_paused(true);
    p.write(1, 0, 1000);
    p.world.run_for(milliseconds(10));
    const bool done = p.poll_a().size() == 1;
    EXPECT_EQ(done, p.world.memory().counts().retracted == 1);
    p.b.set_paused(false);
    p.run_until_idle();
    EXPECT_EQ(p.poll_a().size(), done ? 0u : 1u);
    EXPECT_TRUE(equal(p.rb.at(0, 1000), p.ra.at(0, 1000)));
    if (done) return;
  }
  FAIL() << "no request was retracted";
}

TEST(SharedMemory, WaitsWhileTheRingIsFull) {
  MemoryPair p({.reachable = false});
  p.world.memory().block(kA, kB, true);
  p.write(1, 0, 1000);
  p.world.run_for(milliseconds(1));
  EXPECT_EQ(p.world.memory().counts().packets, 0u);
  p.world.memory().block(kA, kB, false);
  p.run_until_idle();
  EXPECT_EQ(p.poll_a().size(), 1u);
}

// The READ was received through shared memory, segmented at 64 KiB. Its response uses the wire,
// because the link has ended, and is lost there; the retransmitted READ uses the wire too.
TEST(SharedMemory, SinglePacketReadSurvivesTheEndOfTheLink) {
  MemoryPair p({.reachable = false});
  p.b.set_paused(true);
  p.read(1, 0, 1000);
  p.world.run_for(microseconds(5));
  p.b.on_link_end(kA);
  int lost = 0;
  p.drop_first([](HostId from, const auto&) { return from == kB; }, &lost);
  p.b.set_paused(false);
  p.world.run_for(microseconds(200));
  EXPECT_EQ(lost, 1);
  p.a.on_link_end(kB);
  p.run_until_idle();
  const auto done = p.poll_a();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::Success);
  EXPECT_TRUE(equal(p.ra.at(0, 1000), p.rb.at(0, 1000)));
}

// a's link ends while records of b are unread, so its path is not yet reverted to the MTU.
TEST(SharedMemory, ReadWaitsUntilThePathOfAnEndedLinkIsReverted) {
  MemoryPair p({.reachable = false});
  p.a.set_paused(true);
  core::SendRequest write;
  const core::Sge sge = p.sge_b(0, 100);
  write.op = core::SendOp::Write;
  write.sges = {&sge, 1};
  write.remote_address = p.ra.iova + 100000;
  write.rkey = p.ra.key;
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(p.b.post_send(p.qb, write).ok());
  p.world.run_for(microseconds(50));
  p.a.on_link_end(kB);
  p.read(1, 0, 5000);
  p.a.set_paused(false);
  p.world.run_for(microseconds(200));
  p.b.on_link_end(kA);
  p.run_until_idle();
  const auto done = p.poll_a();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::Success);
  EXPECT_TRUE(equal(p.ra.at(0, 5000), p.rb.at(0, 5000)));
}

// The peer reads the request after the end of the link and acknowledges it over the wire.
TEST(SharedMemory, LargerRequestCompletesIfThePeerHasItWhenTheLinkEnds) {
  MemoryPair p({.reachable = false});
  p.b.set_paused(true);
  p.write(1, 0, 5000);
  p.world.run_for(microseconds(5));
  p.end_link();
  p.b.set_paused(false);
  p.world.run_for(milliseconds(1));
  const auto done = p.poll_a();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::Success);
}

TEST(SharedMemory, LargerRequestFailsAnAckTimeoutAfterTheLinkToASilentPeerEnds) {
  MemoryPair p({.reachable = false});
  p.b.set_paused(true);
  p.write(1, 0, 5000);
  p.world.run_for(microseconds(5));
  p.a.on_link_end(kB);
  p.world.run_for(milliseconds(1));
  EXPECT_EQ(p.poll_a().size(), 0u);
  p.world.run_for(core::kUnresponsiveAfter);
  const auto done = p.poll_a();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::RetryExceeded);
}

}  // namespace
}  // namespace verbena::sim
