// Packets in flight, lost packets, retries and timers, without an engine.
#include "core/loss_recovery.h"

#include <vector>

#include "tests/unit/core/requester_parts_support.h"

namespace verbena::core {
namespace {

class LossRecoveryTest : public RequesterPartTest {
 public:
  using Timer = LossRecovery::Timer;
  static constexpr uint32_t kPacketCost = kPayload + PeerPath::kPacketOverhead;

  LossRecoveryTest() {
    qp_.extensions.connect(qp_.qpn, qp_.attr.dest_qpn);
    recovery_.start();
  }

  void send(SendOp op, uint32_t packets, Instant now = kStart) {
    post(op, packets * kPayload);
    while (!cursor_.is_at_end()) recovery_.on_sent(advance(), now);
  }
  void retransmit(wire::Psn psn, Instant now) {
    recovery_.on_retransmitted(psn, recovery_.chunk_to_retransmit(psn), now);
  }
  // The PSNs that the requester would retransmit, in order.
  std::vector<wire::Psn> lost() {
    std::vector<wire::Psn> psns;
    for (wire::Psn psn = cursor_.unacked(); psn != cursor_.next(); psn = psn + 1) {
      if (recovery_.is_lost(psn)) psns.push_back(psn);
    }
    return psns;
  }
  static wire::Packet sequence_nak(wire::Psn psn, std::span<const std::byte> sack = {}) {
    wire::Packet nak;
    nak.bth.psn = psn;
    nak.payload = sack;
    return nak;
  }
  void peer_is_verbena() {
    wire::Bth response;
    response.extension_flags = flags_sent_by(qp_.attr.dest_qpn, qp_.qpn).sack_capable;
    qp_.extensions.on_response(response);
    ASSERT_TRUE(qp_.extensions.peer_buffers_requests());
  }
  Duration timeout() const { return ack_timeout(qp_.attr.timeout); }

  LossRecovery recovery_{qp_, cursor_};
};

TEST_F(LossRecoveryTest, CountsPacketsInFlightUntilTheyAreAcknowledged) {
  send(SendOp::Write, 3);
  EXPECT_EQ(path_.in_flight(), 3 * kPacketCost);
  recovery_.on_acked(2, at(microseconds(10)));
  EXPECT_EQ(path_.in_flight(), kPacketCost);
  EXPECT_EQ(cursor_.unacked(), psn(2));
}

TEST_F(LossRecoveryTest, ANewPathTakesOverTheBytesInFlight) {
  send(SendOp::Write, 2);
  PeerPath other;
  recovery_.change_peer(&other);
  EXPECT_TRUE(path_.is_idle());
  EXPECT_EQ(other.in_flight(), 2 * kPacketCost);
  recovery_.change_peer(nullptr);
  EXPECT_TRUE(other.is_idle());
}

TEST_F(LossRecoveryTest, ResetReleasesTheWindowAndStopsAllTimers) {
  send(SendOp::Write, 2);
  recovery_.wait_for_receiver(at(seconds(1)));
  recovery_.reset();
  EXPECT_TRUE(path_.is_idle());
  EXPECT_EQ(recovery_.deadline(), kNever);
}

TEST_F(LossRecoveryTest, TheAckTimerRunsFromTheFirstPacketToTheLastAck) {
  EXPECT_EQ(recovery_.deadline(), kNever);
  send(SendOp::Write, 2);
  EXPECT_EQ(recovery_.deadline(), at(timeout()));
  recovery_.on_acked(1, at(milliseconds(1)));
  EXPECT_TRUE(recovery_.is_set(Timer::Ack));
  recovery_.on_acked(1, at(milliseconds(2)));
  EXPECT_EQ(recovery_.deadline(), kNever);
}

TEST_F(LossRecoveryTest, MeasuresTheRoundTripOfTheFirstPacket) {
  send(SendOp::Write, 2);
  recovery_.on_acked(2, at(microseconds(40)));
  EXPECT_EQ(path_.round_trip.smoothed(), microseconds(40));
}

TEST_F(LossRecoveryTest, DoesNotMeasureARetransmittedPacket) {
  send(SendOp::Write, 1);
  recovery_.begin();
  retransmit(psn(0), at(microseconds(10)));
  recovery_.on_acked(1, at(microseconds(40)));
  EXPECT_EQ(path_.round_trip.smoothed(), RoundTrip::kStallAllowance);  // nothing was measured
}

TEST_F(LossRecoveryTest, TheDeadlineIsTheEarliestTimer) {
  send(SendOp::Write, 1);
  recovery_.wait_for_receiver(at(microseconds(1)));
  EXPECT_EQ(recovery_.deadline(), at(microseconds(1)));
  recovery_.on_deadline(at(microseconds(1)));
  EXPECT_FALSE(recovery_.is_set(Timer::Rnr));
  EXPECT_EQ(recovery_.deadline(), at(timeout()));
}

TEST_F(LossRecoveryTest, ASequenceNakWithoutASackListMeansThatAllFromItsPsnOnIsLost) {
  send(SendOp::Write, 4);
  recovery_.begin();
  EXPECT_TRUE(recovery_.on_sequence_nak(sequence_nak(psn(1)), kStart));
  EXPECT_EQ(lost(), (std::vector{psn(1), psn(2), psn(3)}));
  EXPECT_EQ(path_.in_flight(), kPacketCost);
  EXPECT_TRUE(path_.has_room());
}

TEST_F(LossRecoveryTest, OnlyPacketsMissingFromTheSackListAreLost) {
  peer_is_verbena();
  send(SendOp::Write, 5);
  recovery_.begin();
  const std::array sack = {std::byte{0b101}};  // PSNs 2 and 4 were received behind PSN 1
  EXPECT_FALSE(recovery_.on_sequence_nak(sequence_nak(psn(1), sack), kStart));
  EXPECT_EQ(lost(), (std::vector{psn(0), psn(1), psn(3)}));
  EXPECT_TRUE(recovery_.is_received(psn(2)));
  EXPECT_TRUE(recovery_.is_received(psn(4)));
}

TEST_F(LossRecoveryTest, PacketsBehindTheLastListedOneAreNotLost) {
  peer_is_verbena();
  send(SendOp::Write, 5);
  recovery_.begin();
  recovery_.on_executed(psn(1), kStart);
  const std::array sack = {std::byte{0b1}};
  recovery_.on_sequence_nak(sequence_nak(psn(1), sack), kStart);
  EXPECT_EQ(lost(), std::vector{psn(1)});
}

TEST_F(LossRecoveryTest, ARetransmittedPacketIsLostAgainOnlyAfterARoundTrip) {
  peer_is_verbena();
  path_.on_round_trip(microseconds(100), kStart);
  send(SendOp::Write, 3);
  recovery_.begin();
  recovery_.on_executed(psn(1), kStart);
  const std::array sack = {std::byte{0b1}};
  recovery_.on_sequence_nak(sequence_nak(psn(1), sack), kStart);
  retransmit(psn(1), kStart);
  EXPECT_TRUE(lost().empty());
  send(SendOp::Write, 1);
  const std::array later = {std::byte{0b11}};  // a packet that left after the retransmission
  recovery_.on_sequence_nak(sequence_nak(psn(1), later), at(microseconds(50)));
  EXPECT_TRUE(lost().empty());
  recovery_.on_sequence_nak(sequence_nak(psn(1), later), at(microseconds(200)));
  EXPECT_EQ(lost(), std::vector{psn(1)});
}

// The peer may have received the first copies of the others while all retransmissions wait in a
// queue of the network.
TEST_F(LossRecoveryTest, ALossThatOnlyRetransmissionsRevealCostsNoRetry) {
  peer_is_verbena();
  path_.on_round_trip(microseconds(100), kStart);
  send(SendOp::Write, 12);
  recovery_.begin();
  Instant now = at(timeout());
  recovery_.on_deadline(now);  // all packets are lost, and one retry is used
  std::array<std::byte, 2> sack{};
  for (uint32_t i = 1; i < 12; ++i) {
    retransmit(psn(0), now);
    retransmit(psn(i), now);
    sack[(i - 1) / 8] |= std::byte{1} << ((i - 1) % 8);
    now = now + milliseconds(200);
    recovery_.on_sequence_nak(sequence_nak(psn(0), sack), now);
    ASSERT_TRUE(recovery_.is_lost(psn(0))) << i;
  }
  EXPECT_FALSE(qp_.failure);
  EXPECT_GT(recovery_.tries(), qp_.attr.retry_count) << "the time before the next one grows";
}

TEST_F(LossRecoveryTest, ALossThatANewPacketRevealsCostsARetry) {
  peer_is_verbena();
  path_.on_round_trip(microseconds(100), kStart);
  send(SendOp::Write, 1);
  recovery_.begin();
  Instant now = at(timeout());
  recovery_.on_deadline(now);
  std::array<std::byte, 2> sack{};
  for (uint32_t i = 1; i < 12 && !qp_.failure; ++i) {
    retransmit(psn(0), now);
    send(SendOp::Write, 1, now);
    sack[(i - 1) / 8] |= std::byte{1} << ((i - 1) % 8);
    now = now + milliseconds(200);
    recovery_.on_sequence_nak(sequence_nak(psn(0), sack), now);
  }
  ASSERT_TRUE(qp_.failure);
  EXPECT_EQ(qp_.failure->status, WcStatus::RetryExceeded);
}

TEST_F(LossRecoveryTest, LossesOfOneEpisodeShrinkTheWindowOnce) {
  send(SendOp::Write, 4);
  recovery_.begin();
  recovery_.on_sequence_nak(sequence_nak(psn(0)), kStart);
  const uint32_t after_first = path_.window();
  recovery_.on_sequence_nak(sequence_nak(psn(1)), kStart);
  EXPECT_EQ(path_.window(), after_first);
}

TEST_F(LossRecoveryTest, AResponseIsAnImpliedNakOfEarlierResponses) {
  send(SendOp::Read, 3);
  recovery_.begin();
  recovery_.on_executed(psn(3), kStart);
  recovery_.on_responded_to(psn(2));
  recovery_.find_lost_responses(kStart);
  EXPECT_EQ(lost(), (std::vector{psn(0), psn(1)}));
  EXPECT_EQ(counter(CounterId::implied_naks), 1u);
}

TEST_F(LossRecoveryTest, RequestsOnlyTheMissingPartOfAReadFromAVerbena) {
  peer_is_verbena();
  send(SendOp::Read, 6);
  recovery_.begin();
  recovery_.on_executed(psn(6), kStart);
  recovery_.on_response_buffered(psn(0), kStart);
  recovery_.on_response_buffered(psn(2), kStart);
  recovery_.on_responded_to(psn(4));
  recovery_.find_lost_responses(kStart);
  ASSERT_EQ(lost(), (std::vector{psn(1), psn(3)}));
  const auto chunk = recovery_.chunk_to_retransmit(psn(1));
  EXPECT_EQ(chunk.first, psn(1));
  EXPECT_EQ(chunk.packets, 3u);
}

TEST_F(LossRecoveryTest, ResumesAReadFromAPlainPeerToItsEnd) {
  send(SendOp::Read, 6);
  recovery_.begin();
  recovery_.on_executed(psn(6), kStart);
  recovery_.on_responded_to(psn(2));
  recovery_.find_lost_responses(kStart);
  const auto chunk = recovery_.chunk_to_retransmit(psn(1));
  EXPECT_EQ(chunk.first, psn(0));
  EXPECT_EQ(chunk.end(), psn(6));
}

TEST_F(LossRecoveryTest, AfterAnAckTimeoutAllPacketsAreLostAndARetryIsUsed) {
  send(SendOp::Write, 3);
  recovery_.begin();
  recovery_.on_deadline(at(timeout()));
  EXPECT_EQ(lost().size(), 3u);
  EXPECT_TRUE(path_.is_idle());
  EXPECT_EQ(counter(CounterId::timeouts), 1u);
  EXPECT_EQ(recovery_.tries(), 1u);
  EXPECT_FALSE(recovery_.is_set(Timer::Ack));
}

TEST_F(LossRecoveryTest, FailsWhenNoRetryIsLeft) {
  send(SendOp::Write, 1);
  recovery_.begin();
  Instant now = kStart;
  for (uint32_t i = 0; i < 10 && !qp_.failure; ++i) {
    now = recovery_.deadline();
    recovery_.on_deadline(now);
    retransmit(psn(0), now);
  }
  ASSERT_TRUE(qp_.failure);
  EXPECT_EQ(qp_.failure->status, WcStatus::RetryExceeded);
  EXPECT_EQ(qp_.failure->retries, qp_.attr.retry_count + 1u);
  EXPECT_EQ(qp_.failure->psn, psn(0).value());
}

TEST_F(LossRecoveryTest, ProgressRenewsTheRetries) {
  send(SendOp::Write, 2);
  recovery_.begin();
  recovery_.on_deadline(at(timeout()));
  retransmit(psn(0), at(timeout()));
  recovery_.on_acked(1, at(timeout()));
  EXPECT_EQ(recovery_.tries(), 0u);
}

TEST_F(LossRecoveryTest, EachTimeoutInARowWaitsLongerUpToFourTimes) {
  qp_.attr.retry_count = 7;
  recovery_.start();
  send(SendOp::Write, 1);
  recovery_.begin();
  Instant now = kStart;
  for (const int64_t factor : {1, 2, 4, 4}) {
    EXPECT_EQ(recovery_.deadline(), now + timeout() * factor);
    now = recovery_.deadline();
    recovery_.on_deadline(now);
    retransmit(psn(0), now);
  }
}

TEST_F(LossRecoveryTest, RnrRetriesRunOutUnlessTheyAreUnlimited) {
  send(SendOp::Send, 1);
  EXPECT_TRUE(recovery_.use_rnr_retry(kStart));
  recovery_.wait_for_receiver(at(milliseconds(1)));
  EXPECT_TRUE(recovery_.is_waiting_for_receiver(kStart));
  EXPECT_FALSE(recovery_.use_rnr_retry(kStart)) << "a duplicate of the NAK whose delay runs";
  EXPECT_FALSE(qp_.failure);
  EXPECT_FALSE(recovery_.use_rnr_retry(at(milliseconds(1))));
  ASSERT_TRUE(qp_.failure);
  EXPECT_EQ(qp_.failure->status, WcStatus::RnrRetryExceeded);

  qp_.failure.reset();
  qp_.attr.rnr_retry = 7;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(recovery_.use_rnr_retry(at(milliseconds(1))));
}

// A response showed during the wait that the peer had executed the READ; its data was lost.
TEST_F(LossRecoveryTest, TheAckTimerRunsAfterAWaitForTheReceiverThatRetransmitsNothing) {
  send(SendOp::Read, 1);
  recovery_.begin();
  recovery_.retransmit_from(psn(0), kStart);
  recovery_.wait_for_receiver(at(microseconds(100)));
  recovery_.on_executed(psn(1), at(microseconds(50)));
  recovery_.on_deadline(at(microseconds(100)));
  EXPECT_TRUE(lost().empty());
  EXPECT_TRUE(recovery_.is_set(Timer::Ack));
}

TEST_F(LossRecoveryTest, AProbeIsDueAfterAFewRoundTripsAndUsesNoRetry) {
  path_.on_round_trip(microseconds(100), kStart);
  send(SendOp::Write, 3);
  ASSERT_LT(recovery_.deadline(), at(timeout()));
  recovery_.on_deadline(recovery_.deadline());
  EXPECT_TRUE(recovery_.is_probe_due());
  EXPECT_TRUE(qp_.has_unwindowed_packet);
  EXPECT_EQ(recovery_.tries(), 0u);
  EXPECT_EQ(counter(CounterId::timeouts), 0u);
}

TEST_F(LossRecoveryTest, ProbesAlternateBetweenTheLastAndTheFirstPacket) {
  path_.on_round_trip(microseconds(100), kStart);
  send(SendOp::Write, 3);
  recovery_.begin();
  std::vector<wire::OptionalPsn> probes;
  for (int i = 0; i < 3; ++i) {
    recovery_.on_deadline(recovery_.deadline());
    probes.push_back(recovery_.choose_probe());
  }
  EXPECT_EQ(probes, (std::vector<wire::OptionalPsn>{psn(2), psn(0), psn(2)}));
}

TEST_F(LossRecoveryTest, EachProbeInARowWaitsTwiceAsLong) {
  path_.on_round_trip(microseconds(100), kStart);
  send(SendOp::Write, 1);
  const Duration first = recovery_.deadline() - kStart;
  const Instant probe = recovery_.deadline();
  recovery_.on_deadline(probe);
  EXPECT_EQ(recovery_.deadline(), probe + first * 2);
}

TEST_F(LossRecoveryTest, APeerInSharedMemoryIsProbedOncePerRetraction) {
  path_.use_shared_memory();
  send(SendOp::Write, 1);
  EXPECT_LT(recovery_.deadline(), at(timeout()));
  recovery_.on_retracted();
  EXPECT_TRUE(path_.is_idle());
  EXPECT_EQ(recovery_.deadline(), kNever);
  cursor_.rewind();
  recovery_.on_sent(advance(), kStart);
  EXPECT_FALSE(recovery_.is_set(Timer::Probe));
  EXPECT_TRUE(recovery_.is_set(Timer::Ack));
}

TEST_F(LossRecoveryTest, TheBackoffTimerEndsWhenThePathHasRoom) {
  EXPECT_TRUE(recovery_.needs_backoff_timer());
  recovery_.start_backoff_timer(kStart);
  EXPECT_FALSE(recovery_.needs_backoff_timer());
  EXPECT_EQ(recovery_.deadline(), at(timeout()));
  recovery_.end_backoff(kStart);
  EXPECT_EQ(recovery_.deadline(), kNever);
  qp_.attr.timeout = 0;
  EXPECT_FALSE(recovery_.needs_backoff_timer());
}

TEST_F(LossRecoveryTest, RecoveryEndsWhenAllRetransmittedPacketsAreAcknowledged) {
  send(SendOp::Write, 3);
  EXPECT_NE(recovery_.begin(), nullptr);
  EXPECT_EQ(recovery_.begin(), nullptr);
  recovery_.on_sequence_nak(sequence_nak(psn(1)), kStart);
  recovery_.on_acked(1, kStart);
  recovery_.end_if_over();
  EXPECT_TRUE(recovery_.is_active());
  EXPECT_TRUE(qp_.has_unwindowed_packet) << "the first outstanding packet is lost";
  retransmit(psn(1), kStart);
  retransmit(psn(2), kStart);
  recovery_.on_acked(2, kStart);
  recovery_.end_if_over();
  EXPECT_FALSE(recovery_.is_active());
  EXPECT_TRUE(path_.is_idle());
}

TEST_F(LossRecoveryTest, AReadWithPartOfItsResponseWasExecuted) {
  send(SendOp::Read, 4);
  recovery_.on_acked(2, kStart);
  recovery_.begin();
  EXPECT_EQ(recovery_.executed(), psn(4));
}

}  // namespace
}  // namespace verbena::core
