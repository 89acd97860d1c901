// A network that marks packets (ECN), between a Verbena and a plain RoCE peer, and between two
// Verbenas.
#include <gtest/gtest.h>

#include "core/notification_point.h"
#include "tests/sim/pair_support.h"

namespace verbena::sim {
namespace {

using core::CounterId;

void write_over_marking_link(Pair& p) {
  auto& link = p.world.network().link(kA, kB);
  link.bits_per_second = 1000000000;
  link.packet.mark = 1;
  for (uint64_t i = 0; i < 16; ++i) p.write(i, i << 16, 1 << 16);
  p.run_until_idle();
  ASSERT_EQ(p.poll_a().size(), 16u);
  EXPECT_TRUE(equal(p.ra.bytes, p.rb.bytes));
  EXPECT_GT(p.counter_b(CounterId::np_ecn_marked_roce_packets), 900u);
}

TEST(Ecn, APlainPeerGetsOneCnpInFiftyMicroseconds) {
  Pair p({.a = false, .b = false}, {}, {}, 1 << 20);
  const Instant start = p.world.now();
  write_over_marking_link(p);
  const auto intervals =
      static_cast<uint64_t>((p.world.now() - start).ns / core::NotificationPoint::kInterval.ns);
  EXPECT_GT(p.counter_b(CounterId::np_cnp_sent), 100u);  // the writes take about 9 ms
  EXPECT_LE(p.counter_b(CounterId::np_cnp_sent), intervals + 1);
  EXPECT_EQ(p.counter_a(CounterId::rp_cnp_handled), p.counter_b(CounterId::np_cnp_sent));
  EXPECT_EQ(p.counter_a(CounterId::rp_cnp_ignored), 0u);
}

TEST(Ecn, AVerbenaGetsTheEchoInsteadOfCnps) {
  Pair p({}, {}, 1 << 20);
  uint64_t echoes = 0;
  p.drop_all([&](HostId from, const wire::Packet& packet) {
    echoes += from == kB && packet.op.verb == wire::Verb::Ack && packet.bth.becn;
    return false;
  });
  p.write(0, 0, 8);  // the two do not know each other before the first ACK
  p.run_until_idle();
  ASSERT_EQ(p.poll_a().size(), 1u);
  write_over_marking_link(p);
  EXPECT_EQ(p.counter_b(CounterId::np_cnp_sent), 0u);
  EXPECT_GT(echoes, 10u);
}

}  // namespace
}  // namespace verbena::sim
