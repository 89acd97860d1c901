// Two programs in a ping-pong: ACKs are piggybacked on requests, and in any network each message
// is delivered once, intact and in order.
#include <gtest/gtest.h>

#include <functional>

#include "tests/sim/pair_support.h"

namespace verbena::sim {
namespace {

using core::CounterId;

constexpr uint64_t kMessages = 400;  // of each
constexpr uint32_t kBytes = 12;
constexpr uint64_t kReceiveOffset = 1 << 16;

class PingPong {
 public:
  explicit PingPong(Pair::Capabilities capabilities)
      : pair(capabilities,
             {.mtu = wire::Mtu::k256, .psn_a = 0xFFFFFF - 100, .psn_b = 77, .timeout = 9},
             {.depth = 16}, 1 << 17) {
    for (Side& side : sides_) {
      side.host->set_ack_delay(8);
      for (uint64_t i = 0; i < 4; ++i) post_receive(side, i);
    }
    send(sides_[0]);
    for (Side& side : sides_) watch(side);
  }

  void run() {
    pair.run_until_idle();
    for (const Side& side : sides_) {
      EXPECT_EQ(side.sent, kMessages);
      EXPECT_EQ(side.done, kMessages);
      EXPECT_EQ(side.received, kMessages);
    }
  }

  Pair pair;

 private:
  struct Side {
    Host* host;
    core::QueuePair* qp;
    core::CompletionQueue* cq;
    Region* region;
    Region* peer_region;
    uint64_t sent = 0;
    uint64_t done = 0;
    uint64_t received = 0;
  };

  void post_receive(Side& side, uint64_t number) {
    const core::Sge sge{side.region->iova + kReceiveOffset + number % 8 * kBytes, kBytes,
                        side.region->key};
    ASSERT_TRUE(side.host->post_receive(*side.qp, {.wr_id = number, .sges = {&sge, 1}}).ok());
  }
  void send(Side& side) {
    const uint64_t at = side.sent % 1000 * kBytes;
    const core::Sge sge{side.region->iova + at, kBytes, side.region->key};
    core::SendRequest r;
    r.op = core::SendOp::Send;
    r.wr_id = side.sent++;
    r.flags = core::kSignaled;
    r.sges = {&sge, 1};
    ASSERT_TRUE(side.host->post_send(*side.qp, r).ok());
  }
  void take(Side& side, const core::Completion& c) {
    ASSERT_EQ(c.status, core::WcStatus::Success);
    if (c.opcode != core::WcOpcode::Receive) {
      ASSERT_EQ(c.wr_id, side.done);
      ++side.done;
      return;
    }
    ASSERT_EQ(c.wr_id, side.received);
    ASSERT_EQ(c.byte_count, kBytes);
    const auto sent_bytes = side.peer_region->at(side.received % 1000 * kBytes, kBytes);
    const auto received_bytes =
        side.region->at(kReceiveOffset + side.received % 8 * kBytes, kBytes);
    ASSERT_TRUE(equal(sent_bytes, received_bytes)) << side.received;
    post_receive(side, 4 + side.received++);
    if (side.sent < kMessages) send(side);
  }
  // A program that polls until it has received all messages.
  void watch(Side& side) {
    for (const core::Completion& c : Pair::poll(*side.cq)) take(side, c);
    if (testing::Test::HasFatalFailure()) return;
    if (side.received == kMessages && side.done == kMessages) return;
    pair.world.after(nanoseconds(100), [this, &side] { watch(side); });
  }

  Side sides_[2] = {{&pair.a, &pair.qa, &pair.cq_a, &pair.ra, &pair.rb},
                    {&pair.b, &pair.qb, &pair.cq_b, &pair.rb, &pair.ra}};
};

TEST(PiggybackedAcks, MostAcksArePiggybacked) {
  PingPong v({true, true});
  v.run();
  for (const uint64_t piggybacked : {v.pair.counter_a(CounterId::acks_piggybacked),
                                     v.pair.counter_b(CounterId::acks_piggybacked)}) {
    EXPECT_GT(piggybacked, kMessages / 2);
    EXPECT_LT(piggybacked, kMessages);
  }
}

TEST(PiggybackedAcks, NoAckIsPiggybackedUnlessBothSidesSupportIt) {
  for (const Pair::Capabilities capabilities :
       {Pair::Capabilities{true, false}, {false, true}, {false, false}}) {
    PingPong v(capabilities);
    v.run();
    EXPECT_EQ(v.pair.counter_a(CounterId::acks_piggybacked), 0u);
    EXPECT_EQ(v.pair.counter_b(CounterId::acks_piggybacked), 0u);
  }
}

TEST(PiggybackedAcks, DeliversEachMessageOnceInAnyNetwork) {
  for (const double loss : {0.0, 0.02, 0.1}) {
    for (const double duplication : {0.0, 0.1}) {
      for (const Duration jitter : {nanoseconds(0), microseconds(1), microseconds(20)}) {
        SCOPED_TRACE(testing::Message() << loss << ", " << duplication << ", " << jitter.ns);
        PingPong v({true, true});
        for (const auto& [from, to] :
             {std::pair{HostId{0}, HostId{1}}, std::pair{HostId{1}, HostId{0}}}) {
          LinkFaults& f = v.pair.world.network().link(from, to);
          f.packet.loss = loss;
          f.packet.duplicate = duplication;
          f.jitter = jitter;
        }
        v.run();
        EXPECT_GT(v.pair.counter_a(CounterId::acks_piggybacked), kMessages / 4);
        EXPECT_EQ(v.pair.counter_a(CounterId::probes_sent) != 0, loss != 0);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::sim
