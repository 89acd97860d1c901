// Selective repeat between two sides that support it, and no extension where one does not.
#include <gtest/gtest.h>

#include "tests/sim/pair_support.h"

namespace verbena::sim {
namespace {

using core::CounterId;
using core::WcStatus;
using wire::Verb;

// Counts of packets on the wire.
struct Captured {
  int flagged[2] = {0, 0};  // packets of a, of b, with nonzero reserved bits
  int lists = 0;            // NAKs with a SACK list
};

bool has_list(const wire::Packet& p) { return is_verb(p, Verb::Ack) && !p.payload.empty(); }

// `change` may change each packet; then it is recorded.
void capture(
    Pair& p, Captured& captured,
    const std::function<void(HostId, Bytes&)>& change = [](HostId, Bytes&) {}) {
  p.world.network().set_tamper_rule([&captured, change](HostId from, HostId, Bytes packet) {
    change(from, packet);
    wire::ParseError why{};
    const auto parsed = wire::Packet::parse(packet, &why);
    if (parsed && parsed->bth.extension_flags != 0) ++captured.flagged[from];
    if (parsed && has_list(*parsed)) ++captured.lists;
    return std::vector<Bytes>{std::move(packet)};
  });
}

void make_lossy(Pair& p, double loss) {
  for (const auto& [from, to] : {std::pair{kA, kB}, std::pair{kB, kA}}) {
    LinkFaults& f = p.world.network().link(from, to);
    f.packet.loss = loss;
    f.packet.duplicate = 0.05;
    f.jitter = microseconds(10);
    f.bits_per_second = 10000000000;
  }
}

constexpr uint32_t kRounds = 40;
constexpr uint64_t kWord = 900000;  // the word of the atomics

// SENDs whose receives are posted late, WRITEs, READs and atomics, all outstanding together.
void post_everything(Pair& p) {
  for (uint64_t i = 0; i < kRounds; ++i) {
    p.send(4 * i, 100000 + i * 5000, 5000);
    p.write(4 * i + 1, 300000 + i * 5000, 5000);
    p.read(4 * i + 2, 500000 + i * 5000, 5000);
    p.fetch_add(4 * i + 3, 800000 + i * 8, kWord, 1);
    p.world.after(microseconds(static_cast<int64_t>(100 + i * 40)),
                  [&p, i] { p.receive(i, 700000 + i * 1000, 5000); });
  }
}

void expect_everything(Pair& p, uint64_t word_before) {
  const auto done = p.poll_a();
  ASSERT_EQ(done.size(), 4 * kRounds);
  for (uint64_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].wr_id, i);
    EXPECT_EQ(done[i].status, WcStatus::Success);
  }
  EXPECT_EQ(p.poll_b().size(), kRounds);
  EXPECT_TRUE(equal(p.rb.at(300000, kRounds * 5000), p.ra.at(300000, kRounds * 5000)));
  EXPECT_TRUE(equal(p.rb.at(500000, kRounds * 5000), p.ra.at(500000, kRounds * 5000)));
  EXPECT_EQ(p.word_b(kWord), word_before + kRounds);
  for (uint64_t i = 0; i < kRounds; ++i) EXPECT_EQ(p.word_a(800000 + i * 8), word_before + i);
}

TEST(SelectiveRepeat, AllOperationsSurviveLossWithAnyCapabilities) {
  for (const Pair::Capabilities capabilities :
       {Pair::Capabilities{true, true}, {true, false}, {false, true}, {false, false}}) {
    SCOPED_TRACE(testing::Message() << "a " << capabilities.a << ", b " << capabilities.b);
    for (const double loss : {0.01, 0.05, 0.1}) {
      Pair p(capabilities,
             {.mtu = wire::Mtu::k1024, .read_depth_a = 4, .timeout = 10, .min_rnr_timer = 1},
             {.depth = 256}, 1 << 20);
      Captured captured;
      capture(p, captured);
      make_lossy(p, loss);
      const uint64_t before = p.word_b(kWord);
      post_everything(p);
      p.run_until_idle();
      expect_everything(p, before);
      // Only b responds, so only b may announce it, and only a may use it.
      EXPECT_EQ(captured.flagged[kA] != 0, capabilities.a && capabilities.b);
      EXPECT_EQ(captured.flagged[kB] != 0, capabilities.b);
      EXPECT_EQ(captured.lists != 0, capabilities.a && capabilities.b);
      EXPECT_EQ(p.counter_b(CounterId::requests_buffered) != 0, capabilities.a && capabilities.b);
    }
  }
}

// A NIC that copies the reserved bits of the last packet it received. Both ends have requests of
// their own, so that our flags are sent back in every kind of packet.
TEST(SelectiveRepeat, NicThatEchoesReservedBitsIsNotTreatedAsCapable) {
  Pair p({true, false}, {.mtu = wire::Mtu::k1024, .timeout = 10}, {.depth = 256}, 1 << 20);
  Captured captured;
  std::byte last{0};
  int echoed = 0;
  capture(p, captured, [&](HostId from, Bytes& packet) {
    constexpr size_t kAt = 8;
    if (from == kA) {
      if ((packet[kAt] & std::byte{0x7F}) != std::byte{0}) last = packet[kAt] & std::byte{0x7F};
      return;
    }
    packet[kAt] |= last;
    echoed += last != std::byte{0} ? 1 : 0;
  });
  make_lossy(p, 0.05);
  const core::Sge sge = p.sge_b(0, 5000);
  for (uint64_t i = 0; i < 100; ++i) {
    p.write(i, 0, 5000);
    core::SendRequest r;
    r.op = core::SendOp::Write;
    r.wr_id = i;
    r.flags = core::kSignaled;
    r.sges = {&sge, 1};
    r.remote_address = p.ra.iova + 500000;
    r.rkey = p.ra.key;
    ASSERT_TRUE(p.b.post_send(p.qb, r).ok());
  }
  p.run_until_idle();
  EXPECT_EQ(p.poll_a().size(), 100u);
  EXPECT_EQ(p.poll_b().size(), 100u);
  EXPECT_GT(echoed, 0);
  EXPECT_EQ(captured.lists, 0);
  EXPECT_EQ(p.counter_a(CounterId::requests_buffered), 0u);
}

}  // namespace
}  // namespace verbena::sim
