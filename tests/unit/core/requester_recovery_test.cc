// Recovery from losses at the requester, with any peer: timeouts, NAKs, reordered responses.
#include "core/requester.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::NakCode;
using wire::Opcode;
using Opcodes = std::vector<Opcode>;

class RequesterRecoveryTest : public EngineTest {};

TEST_F(RequesterRecoveryTest, TimeoutRetransmitsFromTheFirstUnacknowledgedPacket) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 256 * 4).ok());
  transmit();
  receive_ack(101);
  time_out();
  const auto again = transmit();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].psn(), 102u);
  EXPECT_EQ(again[0].opcode(), Opcode::RcWriteMiddle);
  EXPECT_EQ(again[1].opcode(), Opcode::RcWriteLast);
  EXPECT_EQ(counter(CounterId::timeouts), 1u);
  EXPECT_EQ(counter(CounterId::retransmitted_packets), 2u);
}

TEST_F(RequesterRecoveryTest, DeadlineIsTheLocalAckTimeout) {
  connect({.timeout = 14});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  EXPECT_EQ(engine_.next_deadline(), kNever);  // nothing was sent yet
  transmit();
  EXPECT_EQ(engine_.next_deadline(), now_ + nanoseconds(4096) * (1 << 14));
}

TEST_F(RequesterRecoveryTest, TimeoutZeroNeverExpires) {
  connect({.timeout = 0});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

TEST_F(RequesterRecoveryTest, ProgressRestartsTheTimer) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 512).ok());
  transmit();
  now_ = now_ + milliseconds(50);
  receive_ack(100);
  EXPECT_LE(engine_.next_deadline(), now_ + nanoseconds(4096) * (1 << 14));
  now_ = now_ + nanoseconds(4096) * (1 << 14) - nanoseconds(1);
  engine_.on_deadline(now_);
  EXPECT_EQ(counter(CounterId::timeouts), 0u);
  now_ = now_ + nanoseconds(1);
  engine_.on_deadline(now_);
  EXPECT_EQ(counter(CounterId::timeouts), 1u);
}

// A READ whose response is lost, and a SEND behind it whose first packet the peer refuses. The SEND
// may have to wait for the window, which the response fills.
class ResponseBeforeNakTest : public RequesterRecoveryTest {
 protected:
  uint64_t timeouts_after(AckKind refusal) {
    connect();
    EXPECT_TRUE(post(SendOp::Read, 1, 256).ok());
    EXPECT_TRUE(post(SendOp::Send, 2, 8).ok());
    transmit();
    receive_nak(101, AckKind::Nak, 0);
    transmit();  // requests the response again
    receive_nak(101, refusal, 0);
    engine_.on_deadline(now_ + seconds(1));
    return counter(CounterId::timeouts);
  }
};

TEST_F(ResponseBeforeNakTest, KeepsTheAckTimerAfterANak) {
  EXPECT_EQ(timeouts_after(AckKind::Nak), 1u);
}

TEST_F(ResponseBeforeNakTest, KeepsTheAckTimerAfterAnRnrNak) {
  EXPECT_EQ(timeouts_after(AckKind::RnrNak), 1u);
}

TEST_F(RequesterRecoveryTest, RetryTimerDoesNotFireWithNothingOutstanding) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_ack(100);
  completions();
  now_ = now_ + seconds(100);
  engine_.on_deadline(now_);
  EXPECT_EQ(counter(CounterId::timeouts), 0u);
  EXPECT_EQ(qp().state(), QpState::Rts);
  // A later request has its full timeout.
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  transmit();
  engine_.on_deadline(now_);
  EXPECT_EQ(counter(CounterId::timeouts), 0u);
}

TEST_F(RequesterRecoveryTest, AResponseResetsTheBackoff) {
  connect({.retry_count = 7});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(next_deadline());
    transmit();
  }
  receive_ack(100);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  transmit();
  const Instant start = now_;
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(now_ - start, ack_timeout(14));
}

TEST_F(RequesterRecoveryTest, RetryCountIsExact) {
  for (const uint8_t count : {uint8_t{0}, uint8_t{3}, uint8_t{7}}) {
    connect({.retry_count = count});
    const Instant start = now_;
    ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
    ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
    uint32_t sent = 0;
    while (!transmit().empty()) {
      ++sent;
      ASSERT_TRUE(next_deadline());
    }
    EXPECT_EQ(sent, 1u + count);
    // Each wait is longer than the one before it, up to four times the configured timeout.
    const int64_t waits = count == 0 ? 1 : 3 + 4 * (count - 1);
    EXPECT_EQ(now_ - start, nanoseconds(4096) * (1 << 14) * waits);
    EXPECT_EQ(completions(), (Completed{{1, WcStatus::RetryExceeded}, {2, WcStatus::Flushed}}));
    EXPECT_EQ(engine_.state().failures.back().retries, count + 1u);
    EXPECT_EQ(engine_.next_deadline(), kNever);
  }
}

TEST_F(RequesterRecoveryTest, ProgressRefillsTheRetries) {
  connect({.retry_count = 1});
  ASSERT_TRUE(post(SendOp::Write, 1, 256 * 4).ok());
  transmit();
  for (uint32_t psn = 100; psn < 103; ++psn) {
    ASSERT_TRUE(next_deadline());
    transmit();
    receive_ack(psn);
  }
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(RequesterRecoveryTest, SequenceNakRetransmitsAtOnce) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 3, 8).ok());
  transmit();
  receive_nak(101, AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  const auto again = transmit();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].psn(), 101u);
}

TEST_F(RequesterRecoveryTest, WaitsForTheRnrTimerOfThePeer) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_nak(100, AckKind::RnrNak, 14);  // 1.28 ms
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(engine_.next_deadline(), now_ + microseconds(1280));
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(transmit_opcodes(), Opcodes{Opcode::RcSendOnly});
}

TEST_F(RequesterRecoveryTest, RnrDelaysFollowTheTableOfTheSpecification) {
  EXPECT_EQ(rnr_delay(0), microseconds(655360));
  EXPECT_EQ(rnr_delay(1), microseconds(10));
  EXPECT_EQ(rnr_delay(12), microseconds(640));
  EXPECT_EQ(rnr_delay(31), microseconds(491520));
}

TEST_F(RequesterRecoveryTest, RnrRetriesAreExactAndSevenIsUnlimited) {
  connect({.rnr_retry = 2});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  uint32_t sent = 0;
  while (!transmit().empty()) {
    ++sent;
    receive_nak(100, AckKind::RnrNak, 1);
    if (qp().state() == QpState::Rts) {
      ASSERT_TRUE(next_deadline());
    }
  }
  EXPECT_EQ(sent, 3u);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::RnrRetryExceeded}}));

  connect({.rnr_retry = 7});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(transmit().size(), 1u);
    receive_nak(100, AckKind::RnrNak, 1);
    ASSERT_TRUE(next_deadline());
  }
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(RequesterRecoveryTest, DuplicateRnrNakCountsOnce) {
  connect({.rnr_retry = 1});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_nak(100, AckKind::RnrNak, 14);
  receive_nak(100, AckKind::RnrNak, 14);
  EXPECT_EQ(qp().state(), QpState::Rts);
}

// Soft-RoCE responds to a burst of SENDs without receives with an RNR NAK and then, for the later
// packets, with a sequence NAK of the same PSN. Counted as losses, those used up retry_cnt.
TEST_F(RequesterRecoveryTest, ASequenceNakDuringAnRnrWaitIsNotALoss) {
  connect({.rnr_retry = 7});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(transmit().size(), 2u);
    receive_nak(100, AckKind::RnrNak, 14);
    receive_nak(100, AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError));
    EXPECT_TRUE(transmit().empty());
    ASSERT_TRUE(next_deadline());
  }
  EXPECT_EQ(qp().state(), QpState::Rts);
}

// The same NAK, but so late that the packet was already retransmitted.
TEST_F(RequesterRecoveryTest, LateSequenceNaksBetweenRnrNaksDoNotUseUpTheRetries) {
  connect({.rnr_retry = 7});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  for (int i = 0; i < 20; ++i) {
    ASSERT_FALSE(transmit().empty());
    receive_nak(100, AckKind::RnrNak, 6);
    ASSERT_TRUE(next_deadline());
    ASSERT_FALSE(transmit().empty());
    receive_nak(100, AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError));
  }
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(RequesterRecoveryTest, RetransmitsAnAtomicAfterALostResponse) {
  connect();
  ASSERT_TRUE(post(SendOp::FetchAdd, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  transmit();
  receive_ack(
      101);  // the SEND after it was executed, so the atomic was too; its response is missing
  EXPECT_TRUE(completions().empty());
  EXPECT_EQ(transmit_opcodes(), Opcodes{Opcode::RcFetchAdd});
  EXPECT_EQ(counter(CounterId::implied_naks), 1u);
  wire::Packet answer = request(Opcode::RcAtomicAck, 100);
  answer.original = 77;
  receive(answer);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
  EXPECT_EQ(std::to_integer<int>(memory_[0]), 77);
}

TEST_F(RequesterRecoveryTest, ReadResumesAtTheFirstMissingPacket) {
  connect();
  ASSERT_TRUE(post(SendOp::Read, 1, 256 * 4).ok());
  transmit();
  receive(request(Opcode::RcReadResponseFirst, 100), pattern(256));
  receive(request(Opcode::RcReadResponseMiddle, 102), pattern(256));
  const auto again = transmit();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].psn(), 101u);
  EXPECT_EQ(again[0].packet.reth.address, 0x7000u + 256);
  EXPECT_EQ(again[0].packet.reth.length, 768u);
  // Packets of the first response that still arrive trigger no further request.
  receive(request(Opcode::RcReadResponseLast, 103), pattern(256));
  EXPECT_TRUE(transmit().empty());
}

// A retransmitted request of a long READ ends where the first one did.
TEST_F(RequesterRecoveryTest, RetransmittedReadRequestsKeepTheirBoundaries) {
  connect({.mtu = wire::Mtu::k1024});
  ASSERT_TRUE(post(SendOp::Read, 1, kRegionBytes).ok());
  const auto first = transmit();
  ASSERT_GE(first.size(), 2u);
  const uint32_t border = first[1].psn();
  for (uint32_t psn = 100; psn < 105; ++psn) {
    receive(request(psn == 100 ? Opcode::RcReadResponseFirst : Opcode::RcReadResponseMiddle, psn),
            pattern(1024));
  }
  time_out();
  const auto again = transmit();
  ASSERT_GE(again.size(), 1u);
  EXPECT_EQ(again[0].psn(), 105u);
  EXPECT_EQ(again[0].packet.reth.length, (border - 105) * 1024);
}

TEST_F(RequesterRecoveryTest, RetryDoesNotReplayLocalInvalidates) {
  connect();
  MemoryView& memory = engine_.state().memory;
  const uint32_t window = engine_.memory().add_window(kPd, WindowType::Type2).value();
  const WindowBinding binding{key_, kIova, 64, kRemoteRead, window ^ 1};
  ASSERT_TRUE(memory.bind_window(kPd, qp().qpn(), window, binding));
  SendRequest invalidate;
  invalidate.op = SendOp::LocalInvalidate;
  invalidate.wr_id = 1;
  invalidate.flags = kSignaled;
  invalidate.immediate_or_rkey = window ^ 1;
  ASSERT_TRUE(engine_.post_send(qp(), invalidate, now_).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  transmit();
  // Bound again without the engine: a replay would undo it, or fail.
  ASSERT_TRUE(memory.bind_window(kPd, qp().qpn(), window ^ 1, binding));
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(transmit_opcodes(), Opcodes{Opcode::RcSendOnly});
  EXPECT_NE(memory.resolve(window ^ 1, kPd, qp().qpn(), kIova, 8, kRemoteRead), nullptr);
  receive_ack(100);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
}

TEST_F(RequesterRecoveryTest, LateAckShortensThePendingRetransmission) {
  connect();
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(post(SendOp::Write, i, 600).ok());
  transmit();
  ASSERT_TRUE(next_deadline());  // rolled back, not yet retransmitted
  receive_ack(104);              // two of nine packets of the second message are left
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  const auto again = transmit();
  ASSERT_EQ(again.size(), 4u);
  EXPECT_EQ(again[0].psn(), 105u);
  EXPECT_EQ(again[0].opcode(), Opcode::RcWriteLast);
  receive_ack(108);
  EXPECT_EQ(completions(), (Completed{{2, WcStatus::Success}, {3, WcStatus::Success}}));
  EXPECT_TRUE(qp().peer()->is_idle());
}

TEST_F(RequesterRecoveryTest, CountsUnexpectedResponses) {
  connect();
  receive_ack(100);
  receive(request(Opcode::RcReadResponseOnly, 100), pattern(8));
  receive(request(Opcode::RcAtomicAck, 99));
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  receive_ack(100);  // not sent yet
  transmit();
  receive_ack(101);
  receive_ack(99);
  EXPECT_EQ(counter(CounterId::stale_responses), 6u);
  EXPECT_TRUE(completions().empty());
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(RequesterRecoveryTest, HandlesPsnWrap) {
  connect({.sq_psn = 0xFFFFFE});
  ASSERT_TRUE(post(SendOp::Write, 1, 256 * 4).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(sent[1].psn(), 0xFFFFFFu);
  EXPECT_EQ(sent[2].psn(), 0u);
  receive_ack(1);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
}

TEST_F(EngineTest, RnrRetriesDoNotAccumulateDeadlines) {
  connect({.timeout = 31, .rnr_retry = 7});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_EQ(transmit().size(), 1u);
    receive_nak(100, AckKind::RnrNak, 1);
    ASSERT_TRUE(next_deadline());
  }
  EXPECT_LT(engine_.pending_deadlines(), 200u);
}

}  // namespace
}  // namespace verbena::core
