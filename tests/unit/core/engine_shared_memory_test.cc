// An engine with a path through shared memory. The path may be full, because the peer reads
// nothing, and it may end, so that packets are limited to the path MTU again.
#include "base/vendor_error.h"
#include "core/congestion/aimd.h"
#include "core/requester.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;

class EngineSharedMemoryTest : public EngineTest {
 public:
  static constexpr uint32_t kLargePacket = 64 * 1024;

  // Runs every deadline of the given time, as the owner of an engine does.
  void run_for(Duration time) {
    const Instant end = now_ + time;
    while (engine_.next_deadline() <= end) {
      next_deadline();
      transmit();
    }
    now_ = end;
  }

  void end_shared_memory() {
    engine_.revert_paths_to_mtu([](wire::PathId) { return false; }, now_);
  }
};

// Takes ACKs without headers, as a ring does.
class AckRecordSink : public RecordingSink {
 public:
  using RecordingSink::RecordingSink;
  bool send_short_ack(wire::PathId, const wire::Ack& ack) override {
    acknowledged.push_back(ack.psn.value());
    EXPECT_EQ(ack.destination, EngineTest::kPeerQpn);
    return true;
  }
  std::vector<uint32_t> acknowledged;
};

TEST_F(EngineSharedMemoryTest, ReceivesAnAckWithoutHeaders) {
  connect({.path_packet_bytes = kLargePacket});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  const wire::RxMeta meta{.source = peer_gid_, .destination = our_gid_};
  const wire::RxMeta other_source{.source = our_gid_, .destination = our_gid_};
  const wire::Qpn to = qp().qpn();
  const wire::RxPacket for_unknown_qp{
      .bytes = {}, .meta = &meta, .ack = {wire::Qpn(to.value() + 1), wire::Psn(100)}};
  const wire::RxPacket from_other_source{
      .bytes = {}, .meta = &other_source, .ack = {to, wire::Psn(100)}};
  const wire::RxPacket of_unsent_psn{.bytes = {}, .meta = &meta, .ack = {to, wire::Psn(101)}};
  engine_.on_packets({{for_unknown_qp, from_other_source, of_unsent_psn}}, now_);
  EXPECT_EQ(completions(), Completed{});
  EXPECT_EQ(counter(CounterId::unknown_qp), 1u);
  EXPECT_EQ(counter(CounterId::wrong_source), 1u);
  EXPECT_EQ(counter(CounterId::stale_responses), 1u);
  const wire::RxPacket valid{.bytes = {}, .meta = &meta, .ack = {to, wire::Psn(100)}};
  EXPECT_TRUE(engine_.on_packets({&valid, 1}, now_).responses);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
}

TEST_F(EngineSharedMemoryTest, FlagsTheLastPacketOfATurn) {
  connect({.path_packet_bytes = kLargePacket});
  ASSERT_TRUE(post(SendOp::Write, 1, kLargePacket + 8).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  std::vector<bool> last;
  for (const Sent& sent : transmit()) last.push_back(sent.last);
  EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
}

TEST_F(EngineSharedMemoryTest, PacketsOfSeveralQueuePairsArePublishedTogether) {
  connect({.path_packet_bytes = kLargePacket});
  QueuePair* const first = qp_;
  QueuePair* const second = &make_connected({.path_packet_bytes = kLargePacket});
  for (QueuePair* const each : {first, second}) {
    qp_ = each;
    ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  }
  const std::vector<Sent> sent = transmit();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_FALSE(sent[0].last);
}

// The first ACK announces the extensions and is a packet, as is every response that is not a plain
// ACK.
TEST_F(EngineSharedMemoryTest, SendsAPlainAckWithoutHeaders) {
  connect({.path_packet_bytes = kLargePacket});
  AckRecordSink sink(100);
  ASSERT_TRUE(post_receive(1, 8).ok());
  ASSERT_TRUE(post_receive(2, 8).ok());
  for (uint32_t psn = 500; psn < 503; ++psn) {
    receive(request(Opcode::RcSendOnly, psn));
    engine_.poll_transmit(sink, now_);
  }
  ASSERT_EQ(sink.sent.size(), 2u);
  EXPECT_EQ(sink.sent[0].psn(), 500u);
  EXPECT_EQ(sink.acknowledged, std::vector<uint32_t>{501});
  EXPECT_EQ(sink.sent[1].packet.aeth.kind, wire::AckKind::RnrNak);
}

TEST_F(EngineSharedMemoryTest, UsesUpTheRetriesIfThePeerReadsNothing) {
  connect({.timeout = 14, .retry_count = 3, .path_packet_bytes = kLargePacket});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  EXPECT_EQ(transmit().size(), 1u);
  path_full_ = true;
  run_for(ack_timeout(14) * 3);
  EXPECT_EQ(completions(), Completed{});
  run_for(ack_timeout(14) * 2);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::RetryExceeded}}));
}

TEST_F(EngineSharedMemoryTest, UsesUpTheRetriesIfThePathIsFullFromTheStart) {
  connect({.timeout = 14, .retry_count = 3, .path_packet_bytes = kLargePacket});
  path_full_ = true;
  ASSERT_TRUE(post(SendOp::Write, 1, 100'000).ok());
  EXPECT_TRUE(transmit().empty());
  run_for(ack_timeout(14) * 3);
  EXPECT_EQ(completions(), Completed{});
  run_for(ack_timeout(14) * 2);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::RetryExceeded}}));
}

TEST_F(EngineSharedMemoryTest, AckTimeoutStartsWhenThePacketLeavesAFullPath) {
  connect({.timeout = 14, .path_packet_bytes = kLargePacket});
  path_full_ = true;
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  run_for(milliseconds(60));
  path_full_ = false;
  next_deadline();
  ASSERT_EQ(transmit().size(), 1u);
  run_for(milliseconds(60));
  EXPECT_EQ(counter(CounterId::timeouts), 0u);
  run_for(milliseconds(10));
  EXPECT_EQ(counter(CounterId::timeouts), 1u);
}

TEST_F(EngineSharedMemoryTest, AFullPathDoesNotExtendTheAckTimeoutOfSentPackets) {
  connect({.timeout = 14, .path_packet_bytes = kLargePacket});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  for (uint64_t id = 2; id <= 8; ++id) {
    path_full_ = true;
    ASSERT_TRUE(post(SendOp::Send, id, 8).ok());
    run_for(milliseconds(10));
    path_full_ = false;
    transmit();
  }
  EXPECT_EQ(counter(CounterId::timeouts), 1u);
}

TEST_F(EngineSharedMemoryTest, TimeoutZeroWaitsIndefinitelyForAFullPath) {
  connect({.timeout = 0, .path_packet_bytes = kLargePacket});
  path_full_ = true;
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  run_for(seconds(2));
  EXPECT_EQ(completions(), Completed{});
  path_full_ = false;
  next_deadline();
  EXPECT_EQ(transmit().size(), 1u);
}

TEST_F(EngineSharedMemoryTest, AFullPathForResponsesDoesNotTimeOutAnRnrWait) {
  connect({.timeout = 5, .retry_count = 0, .path_packet_bytes = kLargePacket});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_nak(100, wire::AckKind::RnrNak, 0);  // 655 ms
  path_full_ = true;
  receive(request(Opcode::RcWriteOnly, 500));  // needs an ACK
  run_for(milliseconds(500));
  EXPECT_EQ(completions(), Completed{});
}

// Shared memory has no GSO batches that an ACK could end. The ACK leaves before the reply of the
// application, as it does from hardware.
TEST_F(EngineSharedMemoryTest, SendsTheAckBeforeTheApplicationsReply) {
  connect({.path_packet_bytes = kLargePacket});
  receive(request(Opcode::RcWriteOnly, 500));
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  EXPECT_EQ(transmit_opcodes(), (std::vector{Opcode::RcAck, Opcode::RcSendOnly}));
}

TEST_F(EngineSharedMemoryTest, DropsUcMessagesIfThePathStaysFull) {
  connect({.type = QpType::Uc, .path_packet_bytes = kLargePacket});
  path_full_ = true;
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  EXPECT_TRUE(transmit().empty()) << "a busy peer gets time to read";
  run_for(QueuePair::kMaxUnackedBackoff + milliseconds(5));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  // Later messages are dropped at once until the path has room again.
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  transmit();
  EXPECT_EQ(completions(), (Completed{{2, WcStatus::Success}}));
  path_full_ = false;
  ASSERT_TRUE(post(SendOp::Send, 3, 8).ok());
  EXPECT_EQ(transmit().size(), 1u);
  path_full_ = true;
  ASSERT_TRUE(post(SendOp::Send, 4, 8).ok());
  EXPECT_TRUE(transmit().empty());
}

// The engine once handled the same deadline in an endless loop.
TEST_F(EngineSharedMemoryTest, APacedUcQueuePairThatBacksOffFromAFullPathHasNoDeadlineInThePast) {
  connect({.type = QpType::Uc, .path_packet_bytes = kLargePacket});
  for (int i = 0; i < 1000 && engine_.next_deadline() == kNever; ++i) {  // until pacing delays it
    ASSERT_TRUE(post(SendOp::Send, 1, 1024).ok());
    transmit();
    completions();
  }
  ASSERT_NE(engine_.next_deadline(), kNever);
  path_full_ = true;
  ASSERT_TRUE(next_deadline());
  EXPECT_TRUE(transmit().empty());
  EXPECT_GT(engine_.next_deadline(), now_);
  engine_.on_deadline(now_);  // returns
}

TEST_F(EngineSharedMemoryTest, SegmentsAtThePathMtuAfterSharedMemoryEnds) {
  connect({.mtu = wire::Mtu::k1024, .path_packet_bytes = kLargePacket});
  ASSERT_TRUE(post(SendOp::Write, 1, 4096).ok());
  EXPECT_EQ(transmit().size(), 1u);
  receive_ack(100);
  EXPECT_EQ(qp().peer()->window(), FixedWindow::kWindow);
  end_shared_memory();
  EXPECT_EQ(qp().peer()->window(), Aimd::kInitialWindow);
  ASSERT_TRUE(post(SendOp::Write, 2, 4096).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 4u);
  for (const Sent& s : sent) EXPECT_EQ(s.packet.payload.size(), 1024u);
  receive_ack(104);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
}

TEST_F(EngineSharedMemoryTest, RetransmitsPacketsWithinThePathMtuAfterSharedMemoryEnds) {
  connect({.mtu = wire::Mtu::k1024, .path_packet_bytes = kLargePacket});
  ASSERT_TRUE(post(SendOp::Send, 1, 1024).ok());
  ASSERT_TRUE(post(SendOp::FetchAdd, 2, 8).ok());
  transmit();
  end_shared_memory();
  EXPECT_EQ(qp().state(), QpState::Rts);
  time_out();
  const auto retransmitted = transmit();
  ASSERT_EQ(retransmitted.size(), 2u);
  EXPECT_EQ(retransmitted[0].packet.payload.size(), 1024u);
}

TEST_F(EngineSharedMemoryTest, ReplaysOverTheWireAReadReceivedThroughSharedMemory) {
  connect({.mtu = wire::Mtu::k1024, .path_packet_bytes = kLargePacket});
  wire::Packet read = request(Opcode::RcReadRequest, 500);
  read.reth = {kIova, key_, 1024};
  read.packet_payload_bytes = kLargePacket;
  receive(read);
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::RcReadResponseOnly});
  end_shared_memory();
  read.packet_payload_bytes = 0;
  receive(read);
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::RcReadResponseOnly});
}

TEST_F(EngineSharedMemoryTest, FailsLargePacketsInFlightAnAckTimeoutAfterSharedMemoryEnds) {
  for (const SendOp op : {SendOp::Send, SendOp::Write, SendOp::Read}) {
    connect({.mtu = wire::Mtu::k1024, .path_packet_bytes = kLargePacket});
    ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
    ASSERT_TRUE(post(op, 2, 1025).ok());
    transmit();
    end_shared_memory();
    EXPECT_EQ(completions(), Completed{});
    EXPECT_TRUE(transmit().empty());
    time_out();
    EXPECT_EQ(completions(), (Completed{{1, WcStatus::RetryExceeded}, {2, WcStatus::Flushed}}));
    EXPECT_EQ(qp().state(), QpState::Error);
    ASSERT_FALSE(engine_.state().failures.empty());
    EXPECT_TRUE(engine_.state().failures.back().memory_ended);
    engine_.destroy_qp(&qp(), now_);
  }
}

TEST_F(EngineSharedMemoryTest, CompletesLargePacketsThatThePeerAcknowledgesOverTheWire) {
  connect({.mtu = wire::Mtu::k1024, .path_packet_bytes = kLargePacket});
  ASSERT_TRUE(post(SendOp::Send, 1, 1025).ok());
  transmit();
  end_shared_memory();
  receive_ack(100);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  ASSERT_TRUE(post(SendOp::Send, 2, 1025).ok());
  EXPECT_EQ(transmit().size(), 2u);
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(EngineSharedMemoryTest, VendorErrorReportsThatThePeerEnded) {
  connect({.mtu = wire::Mtu::k1024, .path_packet_bytes = kLargePacket});
  ASSERT_TRUE(post(SendOp::Write, 1, 1025).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 1025).ok());
  transmit();
  end_shared_memory();
  time_out();
  Completion c[2];
  ASSERT_EQ(cq_.poll(c, 2), 2u);
  EXPECT_EQ(c[0].status, WcStatus::RetryExceeded);
  EXPECT_EQ(c[0].vendor_error, kVendorPeerEnded);
  EXPECT_EQ(c[1].vendor_error, 0u);
}

TEST_F(EngineSharedMemoryTest, KeepsLargePacketPathsWhoseSharedMemoryRemains) {
  connect({.path_packet_bytes = kLargePacket});
  engine_.revert_paths_to_mtu([](wire::PathId) { return true; }, now_);
  EXPECT_EQ(qp().packet_payload_bytes(), kLargePacket);
  EXPECT_EQ(qp().peer()->window(), FixedWindow::kWindow);
}

}  // namespace
}  // namespace verbena::core
