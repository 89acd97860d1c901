// The order in which packets of several messages are sent: by size, if the peer accepts packets in
// any order.
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::NakCode;
using wire::Opcode;
using Completed = std::vector<std::pair<uint64_t, WcStatus>>;
using Psns = std::vector<uint32_t>;

class SizeSortedBatchesTest : public EngineTest {
 protected:
  static constexpr uint32_t kThreePackets = 600;  // at 256 bytes each

  // PSN 100 is acknowledged, and the peer has announced sack_capable.
  void connect_to_selective_peer(const TestShape& shape = {}) {
    connect(shape);
    ASSERT_TRUE(post(SendOp::Write, 0, 8, 0).ok());
    ASSERT_EQ(transmit().size(), 1u);
    acknowledge(100);
  }
  void acknowledge(uint32_t psn) {
    wire::Packet ack = request(Opcode::RcAck, psn);
    ack.aeth = {AckKind::Ack, wire::kUnlimitedCredits, 0};
    ack.bth.extension_flags = peer_flags().sack_capable;
    receive(ack);
  }
  // A sequence NAK with a SACK list: the peer lacks `missing` and buffers `buffered`.
  void receive_sack(uint32_t missing, const Psns& buffered) {
    wire::Packet p = request(Opcode::RcAck, missing);
    p.aeth = {AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), 0};
    p.bth.extension_flags = peer_flags().sack_capable;
    Bytes list(4);
    for (const uint32_t psn : buffered) {
      const uint32_t bit = psn - missing - 1;
      list[bit / 8] |= std::byte(1u << bit % 8);
    }
    receive(p, list);
  }
  void post_three(SendOp op = SendOp::Write) {
    for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(post(op, i, kThreePackets).ok());
  }
  Psns psns(const std::vector<Sent>& sent) {
    Psns out;
    for (const Sent& s : sent) out.push_back(s.psn());
    return out;
  }
  Psns reordered(const std::vector<Sent>& sent) {
    Psns out;
    for (const Sent& s : sent) {
      const uint8_t mark = s.packet.bth.extension_flags;
      EXPECT_TRUE(mark == own_flags().sack || mark == own_flags().reordered) << s.psn();
      if (mark == own_flags().reordered) out.push_back(s.psn());
    }
    return out;
  }
};

const Psns kBySize = {101, 104, 107, 102, 105, 108, 103, 106, 109};

TEST_F(SizeSortedBatchesTest, SendsPacketsOfOneSizeTogetherAndFlagsReorderedOnes) {
  connect_to_selective_peer();
  post_three();
  const auto sent = transmit();
  EXPECT_EQ(psns(sent), kBySize);
  EXPECT_EQ(reordered(sent), (Psns{104, 107, 105, 108}));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sent[i].opcode(), Opcode::RcWriteFirst);
    EXPECT_EQ(sent[3 + i].opcode(), Opcode::RcWriteMiddle);
    EXPECT_EQ(sent[6 + i].opcode(), Opcode::RcWriteLast);
  }
  EXPECT_TRUE(sent.back().packet.bth.ack_request);
  acknowledge(106);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
  acknowledge(109);
  EXPECT_EQ(completions(), (Completed{{3, WcStatus::Success}}));
  EXPECT_TRUE(qp().peer()->is_idle());
}

TEST_F(SizeSortedBatchesTest, MessagesOfFullPacketsHaveTwoSizes) {
  connect_to_selective_peer();
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_TRUE(post(SendOp::Write, i, 3 * 256).ok());
  const auto sent = transmit();
  EXPECT_EQ(psns(sent), (Psns{101, 104, 102, 103, 105, 106}));
  EXPECT_EQ(reordered(sent), Psns{104});
}

TEST_F(SizeSortedBatchesTest, LastPacketWithImmediateDataHasAnotherSize) {
  connect_to_selective_peer();
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_TRUE(post(SendOp::WriteImm, i, 3 * 256).ok());
  EXPECT_EQ(psns(transmit()), (Psns{101, 104, 102, 105, 103, 106}));
}

TEST_F(SizeSortedBatchesTest, SendsInOrderToOtherPeers) {
  connect();
  post_three();
  const auto sent = transmit();
  EXPECT_EQ(psns(sent), (Psns{100, 101, 102, 103, 104, 105, 106, 107, 108}));
  for (const Sent& s : sent) EXPECT_EQ(s.packet.bth.extension_flags, 0);
}

TEST_F(SizeSortedBatchesTest, SendsAsManyPacketsAsTheSinkTakesAndContinuesLater) {
  connect_to_selective_peer();
  post_three();
  const auto sent = transmit(4);
  EXPECT_EQ(psns(sent), (Psns{101, 104, 102, 103}));
  EXPECT_EQ(psns(transmit()), (Psns{107, 105, 108, 106, 109}));
}

// Other queue pairs may use the window afterwards.
TEST_F(SizeSortedBatchesTest, LastPacketOfATransmissionRequestsAnAck) {
  connect_to_selective_peer();
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_TRUE(post(SendOp::Write, i, 4 * 256).ok());
  const auto sent = transmit(6);
  ASSERT_EQ(psns(sent), (Psns{101, 105, 102, 103, 104, 106}));
  EXPECT_EQ(sent.back().opcode(), Opcode::RcWriteMiddle);
  EXPECT_TRUE(sent.back().packet.bth.ack_request);
}

TEST_F(SizeSortedBatchesTest, PacketsSentLaterAreNotLost) {
  connect_to_selective_peer();
  post_three();
  ASSERT_EQ(psns(transmit()), kBySize);
  receive_sack(102, {104, 105, 107});  // 105 was sent after 102, the rest after 105
  EXPECT_EQ(psns(transmit()), Psns{102});
  acknowledge(109);
  EXPECT_EQ(completions().size(), 3u);
  EXPECT_TRUE(qp().peer()->is_idle());
}

TEST_F(SizeSortedBatchesTest, KeepsTheOrderOfAPartlyAcknowledgedBatch) {
  connect_to_selective_peer();
  post_three();
  ASSERT_EQ(psns(transmit()), kBySize);
  acknowledge(103);
  receive_sack(104, {107, 105});
  EXPECT_EQ(psns(transmit()), Psns{104});
}

TEST_F(SizeSortedBatchesTest, RetransmitsInPsnOrderWithoutTheReorderedFlag) {
  connect_to_selective_peer();
  post_three();
  transmit();
  time_out();
  const auto again = transmit();
  EXPECT_EQ(psns(again), (Psns{101, 102, 103, 104, 105, 106, 107, 108, 109}));
  EXPECT_TRUE(reordered(again).empty());
}

TEST_F(SizeSortedBatchesTest, DoesNotReorderShortMessagesAndFences) {
  connect_to_selective_peer();
  ASSERT_TRUE(post(SendOp::Write, 1, kThreePackets).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 3, kThreePackets).ok());
  ASSERT_TRUE(post(SendOp::Write, 4, kThreePackets, kSignaled | kFence).ok());
  EXPECT_EQ(psns(transmit()), (Psns{101, 102, 103, 104, 105, 106, 107, 108, 109, 110}));
}

TEST_F(SizeSortedBatchesTest, DoesNotOvertakeARequestWithAnInvalidLkey) {
  connect_to_selective_peer();
  ASSERT_TRUE(post(SendOp::Write, 1, kThreePackets).ok());
  const Sge foreign{reinterpret_cast<uintptr_t>(memory_.data()), kThreePackets, key_ + 1};
  SendRequest r;
  r.op = SendOp::Write;
  r.wr_id = 2;
  r.flags = kSignaled;
  r.sges = {&foreign, 1};
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  ASSERT_TRUE(post(SendOp::Write, 3, kThreePackets).ok());
  EXPECT_EQ(psns(transmit()), (Psns{101, 102, 103}));
  acknowledge(103);
  transmit();
  EXPECT_EQ(
      completions(),
      (Completed{{1, WcStatus::Success}, {2, WcStatus::LocalProtection}, {3, WcStatus::Flushed}}));
}

class DiscardingSink : public wire::PacketSink {
 public:
  size_t room() const override { return 1000; }
  void push(const wire::TxPacket&) override {}
};

// PSNs wrap: those of an old batch belong to other messages then.
TEST_F(SizeSortedBatchesTest, DiscardsTheOrderOfACompletedBatch) {
  connect_to_selective_peer({.depth = 256});
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_TRUE(post(SendOp::Write, i, kThreePackets, 0).ok());
  ASSERT_EQ(psns(transmit()), (Psns{101, 104, 102, 105, 103, 106}));
  acknowledge(106);
  DiscardingSink discarding;
  const uint32_t same_psn_again = 101 + (1u << 24);
  for (uint32_t psn = 107; psn != same_psn_again;) {
    const uint32_t count = std::min(128u, same_psn_again - psn);
    for (uint32_t i = 0; i < count; ++i) ASSERT_TRUE(post(SendOp::Write, 9, 8, 0).ok());
    engine_.poll_transmit(discarding, now_);
    psn += count;
    acknowledge((psn - 1) & 0xFFFFFF);
  }
  for (uint64_t i = 1; i <= 6; ++i) ASSERT_TRUE(post(SendOp::Write, i, 8, 0).ok());
  ASSERT_EQ(psns(transmit(3)), (Psns{101, 102, 103}));
  receive_sack(101, {103});
  EXPECT_EQ(psns(transmit(2)), (Psns{101, 102}));
}

TEST_F(SizeSortedBatchesTest, DoesNotSortPacketsThroughSharedMemory) {
  connect({.path_packet_bytes = 256});
  ASSERT_TRUE(post(SendOp::Write, 0, 8, 0).ok());
  transmit();
  acknowledge(100);
  post_three();
  EXPECT_EQ(psns(transmit()), (Psns{101, 102, 103, 104, 105, 106, 107, 108, 109}));
}

// The peer sends no ACK before it has received most of a batch; that must not take as long as the
// timeout.
TEST_F(SizeSortedBatchesTest, ShortTimeoutLimitsTheBatch) {
  connect_to_selective_peer({.timeout = 5});  // 131 us: 819 bytes
  post_three();
  EXPECT_EQ(psns(transmit()), (Psns{101, 102, 104, 103, 105, 107, 106, 108, 109}));
}

TEST_F(SizeSortedBatchesTest, TimeoutReducesTheBatch) {
  connect_to_selective_peer({.timeout = 9});  // 2 ms: about 13 KB
  post_three();
  EXPECT_EQ(psns(transmit()), kBySize);
  now_ = now_ + milliseconds(3);
  engine_.on_deadline(now_);
  acknowledge(109);
  transmit();
  now_ = now_ + milliseconds(1);
  ASSERT_TRUE(post(SendOp::Write, 4, 4000).ok());
  ASSERT_TRUE(post(SendOp::Write, 5, 4000).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 32u);
  EXPECT_EQ(sent[1].psn(), 111u)
      << "not the first packet of the second message: the batch is too small now";
}

}  // namespace
}  // namespace verbena::core
