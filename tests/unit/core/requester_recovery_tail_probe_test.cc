// Late responses: a tail probe requests them long before the timeout, and uses up no retry.
#include "core/requester.h"
#include "core/round_trip.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;
using Psns = std::vector<uint32_t>;

constexpr Duration kTimeout = milliseconds(67);

class TailProbeTest : public EngineTest {
 protected:
  static constexpr Duration kRoundTrip = microseconds(40);

  // One request whose round trip takes kRoundTrip; it has PSN 100.
  void measure() {
    ASSERT_TRUE(post(SendOp::Write, 99, 8).ok());
    transmit();
    now_ = now_ + kRoundTrip;
    receive_ack(100);
    completions();
  }
  static constexpr Duration kStall = milliseconds(5);
  // A READ of four packets whose response is received after kStall.
  void stall(uint64_t i) {
    ASSERT_TRUE(post(SendOp::Read, i, 256 * 4).ok());
    transmit();
    const Instant until = now_ + kStall;
    while (engine_.next_deadline() <= until) {
      ASSERT_TRUE(next_deadline());
      transmit();
    }
    now_ = until;
    const auto first = static_cast<uint32_t>(101 + 4 * (i - 1));
    receive(request(Opcode::RcReadResponseFirst, first), pattern(256));
    receive(request(Opcode::RcReadResponseMiddle, first + 1), pattern(256));
    receive(request(Opcode::RcReadResponseMiddle, first + 2), pattern(256));
    receive(request(Opcode::RcReadResponseLast, first + 3), pattern(256));
    EXPECT_EQ(completions(), (Completed{{i, WcStatus::Success}}));
  }
  Psns transmit_psns() {
    Psns out;
    for (const Sent& s : transmit()) out.push_back(s.psn());
    return out;
  }
};

TEST_F(TailProbeTest, NoProbeBeforeARoundTripIsMeasured) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  transmit();
  EXPECT_EQ(engine_.next_deadline(), now_ + ack_timeout(14));
}

TEST_F(TailProbeTest, ProbesWithTheLastPacketThenTheFirst) {
  connect();
  measure();
  ASSERT_TRUE(post(SendOp::Write, 1, 256 * 4).ok());
  transmit();
  const Instant sent = now_;
  ASSERT_TRUE(next_deadline());
  EXPECT_GE(now_ - sent, kRoundTrip);
  EXPECT_LT(now_ - sent, milliseconds(2));
  auto probe = transmit();
  ASSERT_EQ(probe.size(), 1u);
  EXPECT_EQ(probe[0].psn(), 104u);
  EXPECT_EQ(probe[0].opcode(), Opcode::RcWriteLast);
  EXPECT_TRUE(probe[0].packet.bth.ack_request);
  ASSERT_TRUE(next_deadline());
  probe = transmit();
  ASSERT_EQ(probe.size(), 1u);
  EXPECT_EQ(probe[0].psn(), 101u);
  EXPECT_TRUE(probe[0].packet.bth.ack_request);
  EXPECT_EQ(counter(CounterId::probes_sent), 2u);
  EXPECT_EQ(counter(CounterId::retransmitted_packets), 0u);
  receive_ack(104);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  EXPECT_TRUE(qp().peer()->is_idle());
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

TEST_F(TailProbeTest, ProbesDoNotChangeRetriesAndTimeouts) {
  for (const uint8_t count : {uint8_t{0}, uint8_t{3}, uint8_t{7}}) {
    connect({.retry_count = count});
    measure();
    const uint64_t timeouts = counter(CounterId::timeouts);
    const uint64_t probes = counter(CounterId::probes_sent);
    ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
    transmit();
    const Instant start = now_;
    while (qp().state() == QpState::Rts) {
      ASSERT_TRUE(next_deadline());
      transmit();
    }
    EXPECT_EQ(now_ - start, ack_timeout(14) * (count == 0 ? 1 : 3 + 4 * (count - 1)));
    EXPECT_EQ(counter(CounterId::timeouts) - timeouts, count + 1u);
    EXPECT_EQ(completions(), (Completed{{1, WcStatus::RetryExceeded}}));
    EXPECT_EQ(engine_.state().failures.back().retries, count + 1u);
    // Each probe waits twice as long as the one before it: a few, not hundreds.
    const uint64_t sent = counter(CounterId::probes_sent) - probes;
    EXPECT_GE(sent, 4u * (count + 1));
    EXPECT_LE(sent, 12u * (count + 1));
    to_state(qp(), QpState::Reset);
  }
}

TEST_F(TailProbeTest, TimeoutZeroDisablesProbes) {
  connect();
  measure();
  connect({.timeout = 0});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

// A peer without extensions responds to a probe with a sequence NAK: the tail was lost.
TEST_F(TailProbeTest, RecoversTheLostTailOfAMessage) {
  connect();
  measure();
  ASSERT_TRUE(post(SendOp::Write, 1, 256 * 4).ok());
  transmit();
  receive_ack(101);
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(transmit_psns(), Psns{104});
  receive_nak(102, wire::AckKind::Nak, static_cast<uint8_t>(wire::NakCode::SequenceError));
  EXPECT_EQ(transmit_psns(), (Psns{102, 103, 104}));
  receive_ack(104);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
}

// The window may be full of lost packets, and other queue pairs wait for it too.
TEST_F(TailProbeTest, SendsAProbeThoughTheWindowIsFull) {
  connect({.mtu = wire::Mtu::k4096, .depth = 64});
  measure();
  QueuePair& other = make_connected({.mtu = wire::Mtu::k4096});
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(post(SendOp::Write, i, kRegionBytes).ok());
  while (!transmit().empty()) {
  }
  EXPECT_FALSE(qp().peer()->has_room());
  qp_ = &other;
  ASSERT_TRUE(post(SendOp::Write, 50, 8).ok());
  EXPECT_TRUE(transmit().empty());
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(transmit().size(), 1u);
  EXPECT_EQ(counter(CounterId::probes_sent), 1u);
}

// With one of three ACKs lost, each wait for a lost ACK was measured as a round trip, so the next
// wait was longer, until the timeout came first.
TEST_F(TailProbeTest, LostAckIsNotMeasuredAsARoundTrip) {
  connect();
  measure();
  for (uint64_t i = 1; i <= 50; ++i) {
    ASSERT_TRUE(post(SendOp::Write, i, 8).ok());
    transmit();
    const Instant sent = now_;
    ASSERT_TRUE(next_deadline());  // the ACK was lost
    EXPECT_LT(now_ - sent, milliseconds(2));
    ASSERT_EQ(transmit().size(), 1u);
    now_ = now_ + kRoundTrip;
    receive_ack(100 + static_cast<uint32_t>(i));
    ASSERT_EQ(completions().size(), 1u);
  }
}

TEST_F(TailProbeTest, ProbeOfAReadWithoutResponseRequestsAllOfIt) {
  connect();
  measure();
  ASSERT_TRUE(post(SendOp::Read, 1, 256 * 4).ok());
  transmit();
  ASSERT_TRUE(next_deadline());
  const auto probe = transmit();
  ASSERT_EQ(probe.size(), 1u);
  EXPECT_EQ(probe[0].psn(), 101u);
  EXPECT_EQ(probe[0].packet.reth.length, 1024u);
}

TEST_F(TailProbeTest, NoProbeDuringAnRnrWait) {
  connect();
  measure();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_nak(101, wire::AckKind::RnrNak, 20);  // 10.24 ms
  const Instant start = now_;
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(now_ - start, rnr_delay(20));
  EXPECT_EQ(transmit_psns(), Psns{101});
  EXPECT_EQ(counter(CounterId::probes_sent), 0u);
}

// A software peer is sometimes not scheduled for a few milliseconds. With READs of many queue pairs
// outstanding, each of them sent a probe every time and got all its data twice.
TEST_F(TailProbeTest, StopsProbingAPeerThatOftenStalls) {
  connect();
  measure();
  for (uint64_t i = 1; i <= 50; ++i) stall(i);
  EXPECT_LE(counter(CounterId::probes_sent), 4u);
  EXPECT_EQ(counter(CounterId::timeouts), 0u);
}

TEST_F(TailProbeTest, ProbesAStallingPeerAgainAfterALoss) {
  connect();
  measure();
  for (uint64_t i = 1; i <= 3; ++i) stall(i);
  ASSERT_TRUE(post(SendOp::Write, 5, 256 * 4).ok());
  transmit();
  const uint32_t first = 101 + 3 * 4;
  receive_nak(first, wire::AckKind::Nak, static_cast<uint8_t>(wire::NakCode::SequenceError));
  EXPECT_EQ(transmit_psns().size(), 4u);
  receive_ack(first + 3);
  EXPECT_EQ(completions(), (Completed{{5, WcStatus::Success}}));
  const uint64_t probes = counter(CounterId::probes_sent);
  ASSERT_TRUE(post(SendOp::Write, 6, 8).ok());
  transmit();
  const Instant sent = now_;
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(transmit().size(), 1u);
  EXPECT_EQ(counter(CounterId::probes_sent), probes + 1);
  EXPECT_LT(now_ - sent, milliseconds(2));
}

}  // namespace
}  // namespace verbena::core
