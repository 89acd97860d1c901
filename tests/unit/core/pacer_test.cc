// Rate limits: the token bucket itself, and a queue pair with a rate limit.
#include "core/pacer.h"

#include <algorithm>

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

TEST(PacerTest, IsAlwaysOpenWithoutALimit) {
  Pacer pacer;
  EXPECT_FALSE(pacer.limited());
  pacer.sent(0, Instant{5});
  EXPECT_TRUE(pacer.open(Instant{5}));
}

TEST(PacerTest, AllowsABurstAndThenTheRate) {
  Pacer pacer;
  pacer.set(8000, 4000);  // a byte per microsecond
  Instant now{1'000'000'000};
  int sent = 0;
  while (pacer.open(now)) {
    pacer.sent(1000, now);
    ++sent;
  }
  EXPECT_EQ(sent, 5);  // the last packet may exceed the burst
  // The pacer opens when half of the burst is available again, not for each byte.
  EXPECT_EQ(pacer.reopens_at(), now + microseconds(3000));
  EXPECT_FALSE(pacer.open(now + microseconds(2999)));
  EXPECT_TRUE(pacer.open(now + microseconds(3000)));
}

TEST(PacerTest, KeepsTheRateOverTime) {
  constexpr uint64_t kPacket = 1000;
  for (const uint64_t kbps : {64u, 1000u, 1'000'000u, 100'000'000u}) {
    Pacer pacer;
    pacer.set(static_cast<uint32_t>(kbps), 0);
    const Instant start{7};
    Instant now = start;
    const uint64_t wanted = std::max(kbps * 1000 / 8 / 10, 1000 * kPacket);  // 100 ms or more
    uint64_t bytes = 0;
    while (bytes < wanted) {
      if (pacer.open(now)) {
        pacer.sent(kPacket, now);
        bytes += kPacket;
      } else {
        now = pacer.reopens_at();
      }
    }
    const double seconds = static_cast<double>((now - start).ns) / 1e9;
    const double rate = static_cast<double>(bytes) * 8 / 1000 / seconds;
    EXPECT_NEAR(rate / static_cast<double>(kbps), 1.0, 0.02) << kbps;
  }
}

class PacedQp : public EngineTest {};

TEST_F(PacedQp, SendsTheRestAtItsDeadlines) {
  connect();
  engine_.set_rate_limit(qp(), 8000, 1000, now_);
  EXPECT_EQ(qp().query().rate_limit, 8000u);
  ASSERT_TRUE(post(SendOp::Write, 1, 2560).ok());  // ten packets
  const size_t first = transmit().size();
  EXPECT_GT(first, 0u);
  EXPECT_LT(first, 10u);
  EXPECT_TRUE(transmit().empty());
  const Instant start = now_;
  size_t sent = first;
  for (int i = 0; i < 100 && sent < 10; ++i) {
    ASSERT_TRUE(next_deadline());
    sent += transmit().size();
  }
  EXPECT_EQ(sent, 10u);
  // All bytes beyond the burst take one microsecond each.
  EXPECT_GT((now_ - start).ns, microseconds(1000).ns);
  EXPECT_LT((now_ - start).ns, microseconds(3000).ns);
  receive_ack(109);
  EXPECT_EQ(completions(), (std::vector<std::pair<uint64_t, WcStatus>>{{1, WcStatus::Success}}));
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

TEST_F(PacedQp, ChangedLimitAppliesAtOnce) {
  connect();
  engine_.set_rate_limit(qp(), kMinRateKbps, 1, now_);
  ASSERT_TRUE(post(SendOp::Write, 1, 2560).ok());
  EXPECT_EQ(transmit().size(), 1u);
  EXPECT_TRUE(transmit().empty());
  engine_.set_rate_limit(qp(), 0, 0, now_);
  EXPECT_EQ(transmit().size(), 9u);
}

TEST_F(PacedQp, DoesNotLimitResponses) {
  connect();
  engine_.set_rate_limit(qp(), kMinRateKbps, 1, now_);
  ASSERT_TRUE(post(SendOp::Write, 1, 512).ok());
  EXPECT_EQ(transmit().size(), 1u);
  receive(request(wire::Opcode::RcWriteOnly, 500));
  EXPECT_EQ(transmit_opcodes(), std::vector{wire::Opcode::RcAck});
}

// The window opens while the pacer is closed: only the deadline makes the queue pair ready again.
TEST_F(PacedQp, SendsAtItsDeadlineAfterWaitingForTheWindow) {
  connect();
  QueuePair* const paced = qp_;
  connect();
  QueuePair* const other = qp_;
  qp_ = paced;
  engine_.set_rate_limit(*paced, kMinRateKbps, 1, now_);
  ASSERT_TRUE(post(SendOp::Write, 1, 256).ok());
  EXPECT_EQ(transmit().size(), 1u);
  receive_ack(100);
  qp_ = other;
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(post(SendOp::Write, 10 + i, 128 * 1024).ok());
  size_t sent = transmit().size();
  qp_ = paced;
  ASSERT_TRUE(post(SendOp::Write, 2, 256).ok());
  EXPECT_TRUE(transmit().empty()) << "the window is full";
  engine_.next_deadline();

  qp_ = other;
  uint32_t psn = 100;
  for (int i = 0; i < 1000 && sent != 0; ++i) {
    psn += static_cast<uint32_t>(sent);
    receive_ack(psn - 1);
    now_ = now_ + microseconds(10);
    sent = transmit().size();
  }
  size_t late = 0;
  for (int i = 0; i < 10 && late == 0 && next_deadline(); ++i) late += transmit().size();
  EXPECT_EQ(late, 1u);
}

TEST_F(PacedQp, ModifySetsTheLimit) {
  connect();
  QpAttributes attr;
  attr.rate_limit = kMinRateKbps - 1;
  EXPECT_FALSE(qp().check_modify(attr, qp_attr::kRateLimit).ok());
  attr.rate_limit = 8000;
  ASSERT_TRUE(qp().check_modify(attr, qp_attr::kRateLimit).ok());
  engine_.modify_qp(qp(), attr, qp_attr::kRateLimit, now_);
  ASSERT_TRUE(post(SendOp::Write, 1, 25600).ok());
  EXPECT_LT(transmit().size(), 100u);
}

// At such a rate eight packets would take longer than the timeout.
TEST_F(PacedQp, RequestsAnAckWithEachPacketAtALowRate) {
  connect();
  engine_.set_rate_limit(qp(), kMinRateKbps, 1, now_);
  ASSERT_TRUE(post(SendOp::Write, 1, 2560).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].packet.bth.ack_request);
}

TEST_F(PacedQp, ResetRemovesTheLimit) {
  connect();
  engine_.set_rate_limit(qp(), kMinRateKbps, 0, now_);
  to_state(qp(), QpState::Reset);
  EXPECT_EQ(qp().query().rate_limit, 0u);
}

}  // namespace
}  // namespace verbena::core
