// ACKs inside requests, as two Verbenas exchange them in a ping-pong.
#include "base/bytes.h"
#include "tests/unit/core/piggyback_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::Opcode;

class QueuePairPiggybackTest : public PiggybackFixture {
 protected:
  void receive_piggyback(uint32_t psn, uint32_t acknowledged, const Bytes& payload) {
    wire::Packet p = request(Opcode::RcSendOnly, psn);
    p.bth.extension_flags = peer_flags().piggyback;
    Bytes bytes(kPiggybackBytes);
    store_be32(bytes.data(), acknowledged);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    receive(p, bytes);
  }
  void expect_at(uint64_t offset, const Bytes& bytes) {
    EXPECT_TRUE(std::ranges::equal(std::span(memory_).subspan(offset, bytes.size()), bytes));
  }
};

TEST_F(QueuePairPiggybackTest, ASendPiggybacksTheAck) {
  connect_with_extensions();
  make_ack_due();
  const Bytes message = pattern(7, 3);
  std::ranges::copy(message, memory_.begin());
  ASSERT_TRUE(post(SendOp::Send, 1, 7).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcSendOnly);
  EXPECT_EQ(sent[0].packet.bth.extension_flags, own_flags().piggyback);
  const auto payload = sent[0].packet.payload;
  ASSERT_EQ(payload.size(), kPiggybackBytes + 7);
  EXPECT_EQ(load_be32(payload.data()), 501u);
  EXPECT_TRUE(std::ranges::equal(payload.subspan(kPiggybackBytes), message));
  EXPECT_EQ(counter(CounterId::acks_piggybacked), 1u);
  EXPECT_TRUE(transmit().empty());  // the ACK has left
}

TEST_F(QueuePairPiggybackTest, AWritePiggybacksTheAckBehindItsHeaders) {
  connect_with_extensions();
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.reth.length, 8u);
  ASSERT_EQ(sent[0].packet.payload.size(), kPiggybackBytes + 8);
  EXPECT_EQ(load_be32(sent[0].packet.payload.data()), 501u);
}

TEST_F(QueuePairPiggybackTest, SendsTheAckAgainForADuplicateRequest) {
  connect_with_extensions();
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  wire::Packet again = request(Opcode::RcSendOnly, 501);
  again.bth.extension_flags = peer_flags().sack;
  receive(again, pattern(8));
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::RcAck});
}

TEST_F(QueuePairPiggybackTest, ARetransmittedRequestDoesNotPiggyback) {
  connect_with_extensions();
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  time_out();
  wire::Packet again = request(Opcode::RcSendOnly, 501);
  again.bth.extension_flags = peer_flags().sack;
  receive(again, pattern(8));
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcSendOnly);
  EXPECT_EQ(sent[0].packet.bth.extension_flags, own_flags().sack);
  EXPECT_EQ(sent[0].packet.payload.size(), 8u);
  EXPECT_EQ(sent[1].opcode(), Opcode::RcAck);
}

TEST_F(QueuePairPiggybackTest, SendsAnAckPacketToAPeerWithoutExtensions) {
  connect();
  ASSERT_TRUE(post_receive(90, 256).ok());
  ASSERT_TRUE(post_receive(91, 256).ok());
  receive(request(Opcode::RcSendOnly, 500), pattern(8));
  transmit();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_ack(100);
  receive(request(Opcode::RcSendOnly, 501), pattern(8));
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].packet.payload.size(), 8u);
  EXPECT_EQ(sent[0].packet.bth.extension_flags, 0);
  EXPECT_EQ(sent[1].opcode(), Opcode::RcAck);
}

TEST_F(QueuePairPiggybackTest, SendsTheFirstAckAsAPacketBecauseItAnnouncesTheExtensions) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  wire::Packet ack = request(Opcode::RcAck, 100);
  ack.aeth = {AckKind::Ack, wire::kUnlimitedCredits, 0};
  ack.bth.extension_flags = peer_flags().sack_capable;
  receive(ack);
  ASSERT_TRUE(post_receive(90, 256).ok());
  receive(request(Opcode::RcSendOnly, 500), pattern(8));
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  EXPECT_EQ(transmit_opcodes(), (std::vector{Opcode::RcSendOnly, Opcode::RcAck}));
}

// Packets of one size leave in one GSO batch, and the shorter ACK ends it.
TEST_F(QueuePairPiggybackTest, SeveralMessagesDoNotPiggyback) {
  connect_with_extensions();
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].bytes.size(), sent[1].bytes.size());
  EXPECT_EQ(sent[2].opcode(), Opcode::RcAck);
}

TEST_F(QueuePairPiggybackTest, AFullPacketDoesNotPiggyback) {
  for (const uint32_t spare : {0u, 3u, 4u}) {
    connect_with_extensions();
    make_ack_due();
    ASSERT_TRUE(post(SendOp::Send, 1, 256 - spare).ok());
    EXPECT_EQ(transmit().size(), spare == kPiggybackBytes ? 1u : 2u) << spare;
    engine_.destroy_qp(qp_, now_);
  }
}

TEST_F(QueuePairPiggybackTest, ASendThroughSharedMemoryPiggybacksTheAck) {
  connect_with_extensions({.path_packet_bytes = 65536});
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Send, 1, 1000).ok());
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::RcSendOnly});
}

TEST_F(QueuePairPiggybackTest, AWriteThroughSharedMemoryPiggybacksTheAck) {
  connect_with_extensions({.path_packet_bytes = 65536});
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::RcWriteOnly});
}

TEST_F(QueuePairPiggybackTest, ReadsTheAckInFrontOfASeparatePayload) {
  connect_with_extensions();
  ASSERT_TRUE(post_receive(92, 256, 1024).ok());
  ASSERT_TRUE(post_receive(93, 256, 2048).ok());
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  wire::Packet p = request(Opcode::RcSendOnly, 501);
  const wire::RxMeta meta{.source = peer_gid_, .destination = our_gid_};
  const auto receive_apart = [&](uint8_t mark, size_t in_front, const Bytes& payload) {
    p.bth.extension_flags = mark;
    Bytes bytes(wire::kMaxHeaderBytes);
    bytes.resize(wire::store_headers(p, bytes.data()));
    bytes.resize(bytes.size() + in_front);
    if (in_front != 0) store_be32(&bytes[wire::kBthBytes], 101);
    const wire::RxPacket rx{.bytes = bytes, .meta = &meta, .separate_payload = payload};
    engine_.on_packets({&rx, 1}, now_);
  };
  receive_apart(peer_flags().sack, 4, pattern(8, 3));  // four bytes without the piggyback flag
  receive_apart(0, 4, pattern(8, 3));
  receive_apart(peer_flags().piggyback, 8, pattern(8, 3));
  EXPECT_EQ(counter(CounterId::malformed_packets), 3u);
  EXPECT_EQ(completions(),
            (Completed{{1, WcStatus::Success}}));  // the ACK of the last packet counts
  receive_apart(peer_flags().piggyback, 4, pattern(8, 4));
  expect_at(1024, pattern(8, 4));
  p.bth.psn = wire::Psn(502);
  receive_apart(peer_flags().piggyback, 0,
                pattern(8, 5));  // the ACK is at the start of the payload
  EXPECT_EQ(completions(), (Completed{{92, WcStatus::Success}, {93, WcStatus::Success}}));
  EXPECT_TRUE(std::ranges::equal(std::span(memory_).subspan(2048, 4),
                                 std::span<const std::byte>(pattern(8, 5)).subspan(4)));
}

TEST_F(QueuePairPiggybackTest, SendsNaksAsPackets) {
  connect_with_extensions();
  wire::Packet p = request(Opcode::RcSendOnly, 501);  // no receive is posted
  p.bth.extension_flags = peer_flags().sack;
  receive(p, pattern(8));
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  auto sent = transmit();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].packet.bth.extension_flags, own_flags().sack);
  EXPECT_EQ(sent[1].packet.aeth.kind, AckKind::RnrNak);

  ASSERT_TRUE(post_receive(92, 256).ok());
  receive(p, pattern(8));
  receive_ack(101);
  p.bth.psn = wire::Psn(503);
  receive(p, pattern(8));  // 502 is missing
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  sent = transmit();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].packet.payload.size(), 8u);
  EXPECT_EQ(sent[1].packet.aeth.kind, AckKind::Nak);
}

TEST_F(QueuePairPiggybackTest, CompletesTheRequestAndThenTheReceive) {
  connect_with_extensions();
  ASSERT_TRUE(post_receive(92, 256, 1024).ok());
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_piggyback(501, 101, pattern(6, 9));
  const auto done = poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].wr_id, 1u);
  EXPECT_EQ(done[1].wr_id, 92u);
  EXPECT_EQ(done[1].byte_count, 6u);
  expect_at(1024, pattern(6, 9));
  EXPECT_TRUE(qp().peer()->is_idle());
}

TEST_F(QueuePairPiggybackTest, BuffersAMessageBehindAGapWithoutItsAck) {
  connect_with_extensions();
  ASSERT_TRUE(post_receive(92, 256, 1024).ok());
  ASSERT_TRUE(post_receive(93, 256, 2048).ok());
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_piggyback(502, 101, pattern(8, 5));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  wire::Packet first = request(Opcode::RcSendOnly, 501);
  first.bth.extension_flags = peer_flags().sack;
  receive(first, pattern(8, 4));
  EXPECT_EQ(completions(), (Completed{{92, WcStatus::Success}, {93, WcStatus::Success}}));
  expect_at(1024, pattern(8, 4));
  expect_at(2048, pattern(8, 5));
}

TEST_F(QueuePairPiggybackTest, IgnoresDuplicateAndOldAcks) {
  connect_with_extensions();
  ASSERT_TRUE(post_receive(92, 256).ok());
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_piggyback(501, 100, pattern(8));  // older than the last ACK
  EXPECT_EQ(completions(), (Completed{{92, WcStatus::Success}}));
  receive_piggyback(501, 101,
                    pattern(8));  // a duplicate request with a new ACK, which Verbena does not send
  receive_piggyback(501, 101, pattern(8));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  receive_piggyback(501, 150, pattern(8));  // of a PSN that was not sent
  EXPECT_EQ(counter(CounterId::stale_responses), 3u);
}

// A message that is too short for its piggyback flag is delivered whole.
TEST_F(QueuePairPiggybackTest, DeliversAMessageTooShortForAnAckWhole) {
  connect_with_extensions();
  ASSERT_TRUE(post_receive(92, 256).ok());
  wire::Packet p = request(Opcode::RcSendOnly, 501);
  p.bth.extension_flags = peer_flags().piggyback;
  receive(p, pattern(3));
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].byte_count, 3u);
}

TEST_F(QueuePairPiggybackTest, IgnoresItsOwnFlagSentBack) {
  connect_with_extensions();
  ASSERT_TRUE(post_receive(92, 256).ok());
  wire::Packet p = request(Opcode::RcSendOnly, 501);
  p.bth.extension_flags = own_flags().piggyback;
  receive(p, pattern(8));
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].byte_count, 8u);
}

// The completion of the request may overrun its queue and fail the queue pair before the message is
// executed.
TEST_F(QueuePairPiggybackTest, ACqOverrunFailsTheQueuePairBeforeTheMessageIsExecuted) {
  connect_with_extensions();
  ASSERT_TRUE(post_receive(92, 256, 1024).ok());
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  for (int full = 0; !cq_.overrun() && full < 1000; ++full) {
    if (Completion* const c = cq_.next()) {
      *c = Completion{};
      cq_.publish();
    } else {
      break;
    }
  }
  std::ranges::fill(std::span(memory_).subspan(1024, 8), std::byte{0});
  receive_piggyback(501, 101, pattern(8, 9));
  EXPECT_EQ(qp().state(), QpState::Error);
  expect_at(1024, Bytes(8));
}

}  // namespace
}  // namespace verbena::core
