// Cases in which a piggybacked ACK could get lost.
#include "base/bytes.h"
#include "tests/unit/core/piggyback_support.h"
#include "wire/one_sided.h"

namespace verbena::core {
namespace {

using wire::Opcode;

// A shared-memory path that reclaims the packets that the peer has not read.
class MemorySink final : public RecordingSink {
 public:
  MemorySink() : RecordingSink(10000) {}
  bool is_full(wire::PathId) const override { return path_full; }
  bool is_asleep(wire::PathId) const override { return asleep; }
  bool retract(const wire::Unread& r) override {
    packets_retracted += r.packets;
    return true;
  }
  bool path_full = false;
  bool asleep = false;
  uint32_t packets_retracted = 0;
};

class QueuePairPiggybackLossTest : public PiggybackFixture {
 public:
  std::vector<Opcode> turn() {
    sink_.sent.clear();
    engine_.poll_transmit(sink_, now_);
    std::vector<Opcode> sent;
    for (const Sent& s : sink_.sent) sent.push_back(s.opcode());
    return sent;
  }
  bool has_ack(const std::vector<Sent>& sent) {
    return std::ranges::any_of(sent, [&](const Sent& s) {
      return s.opcode() == Opcode::RcAck || s.packet.bth.extension_flags == own_flags().piggyback;
    });
  }
  MemorySink sink_;
};

const TestShape kMemory{.path_packet_bytes = 65536};

// The WRITE may become a one-sided access. Then the peer would not receive the ACK.
TEST_F(QueuePairPiggybackLossTest, AWriteToASleepingPeerDoesNotPiggyback) {
  connect_with_extensions(kMemory);
  make_ack_due();
  sink_.asleep = true;
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  EXPECT_EQ(turn(), (std::vector{Opcode::RcAck, Opcode::RcWriteOnly}));
}

TEST_F(QueuePairPiggybackLossTest, ResendsTheAckOfARetractedWrite) {
  connect_with_extensions(kMemory);
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  EXPECT_EQ(turn(), std::vector{Opcode::RcWriteOnly});
  EXPECT_TRUE(has_ack(sink_.sent));
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(turn(), (std::vector{Opcode::RcAck, Opcode::RcWriteOnly}));
  EXPECT_EQ(sink_.packets_retracted, 1u);
}

TEST_F(QueuePairPiggybackLossTest, SendsNoAckForARetractedWriteWithoutOne) {
  connect_with_extensions(kMemory);
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  EXPECT_EQ(turn(), std::vector{Opcode::RcWriteOnly});
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(turn(), std::vector{Opcode::RcWriteOnly});
  EXPECT_EQ(sink_.packets_retracted, 1u);
}

TEST_F(QueuePairPiggybackLossTest, ResendsTheAckOfARetractedEmptyWrite) {
  connect_with_extensions(kMemory);
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Write, 1, 0).ok());
  turn();
  bool ack_sent =
      has_ack(sink_.sent) && sink_.sent.back().packet.bth.extension_flags != own_flags().piggyback;
  ASSERT_TRUE(next_deadline());
  turn();
  ASSERT_EQ(sink_.packets_retracted, 1u);
  ack_sent |= has_ack(sink_.sent);
  EXPECT_TRUE(ack_sent) << "the peer never received the ACK";
}

// One-sided access is refused while the path is full, and the WRITE leaves as a packet.
TEST_F(QueuePairPiggybackLossTest, ResendsTheAckOfARetractedWriteThatWasRefusedOneSidedAccess) {
  connect_with_extensions(kMemory);
  make_ack_due();
  sink_.path_full = sink_.asleep = true;
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  EXPECT_TRUE(turn().empty());
  sink_.path_full = false;
  ASSERT_TRUE(next_deadline());
  turn();
  ASSERT_FALSE(sink_.sent.empty());
  bool ack_sent = false;
  for (const Sent& s : sink_.sent) ack_sent |= s.opcode() == Opcode::RcAck;
  sink_.asleep = false;
  for (int i = 0; i < 3 && sink_.packets_retracted == 0; ++i) {
    ASSERT_TRUE(next_deadline());
    turn();
  }
  ASSERT_EQ(sink_.packets_retracted, 1u);
  ack_sent |= has_ack(sink_.sent);
  EXPECT_TRUE(ack_sent) << "the peer never received the ACK";
}

TEST_F(QueuePairPiggybackLossTest, SendsTheAckAsAPacketWhileTheSendQueueDrains) {
  connect_with_extensions();
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  to_state(qp(), QpState::Sqd);
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::RcAck});
  to_state(qp(), QpState::Rts);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.bth.extension_flags, own_flags().sack);
}

TEST_F(QueuePairPiggybackLossTest, TheAckStaysDueWhileTheSinkIsFull) {
  connect_with_extensions();
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  EXPECT_TRUE(transmit(0).empty());
  auto sent = transmit(1);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.bth.extension_flags, own_flags().piggyback);
  EXPECT_TRUE(transmit().empty());
}

TEST_F(QueuePairPiggybackLossTest, ARateLimitedRequestDoesNotDelayTheAck) {
  connect_with_extensions();
  engine_.set_rate_limit(qp(), 1000, 0, now_);
  ASSERT_TRUE(post(SendOp::Send, 1, 200).ok());
  transmit();
  receive_ack(101);
  completions();
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Send, 2, 200).ok());
  const auto sent = transmit();
  EXPECT_TRUE(has_ack(sent)) << sent.size();
  for (int i = 0; i < 5; ++i) {
    if (!next_deadline()) break;
    for (const Sent& s : transmit()) EXPECT_NE(s.packet.bth.extension_flags, own_flags().piggyback);
  }
}

TEST_F(QueuePairPiggybackLossTest, SendsTheAckAsAPacketIfTheRequestIsDenied) {
  connect_with_extensions();
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Send, 1, 8, kSignaled, kRegionBytes).ok());
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::RcAck});
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalProtection}}));
}

TEST_F(QueuePairPiggybackLossTest, AnEmptyMessagePiggybacksTheAck) {
  for (const uint32_t packet_bytes : {0u, 65536u}) {
    connect_with_extensions({.path_packet_bytes = packet_bytes});
    make_ack_due();
    ASSERT_TRUE(post(SendOp::Send, 1, 0).ok());
    const auto sent = transmit();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].packet.payload.size(), 4u);
    EXPECT_EQ(load_be32(sent[0].packet.payload.data()), 501u);
    ASSERT_TRUE(post_receive(93, 256, 1024).ok());
    wire::Packet p = request(Opcode::RcSendOnly, 502);
    p.bth.extension_flags = peer_flags().piggyback;
    Bytes b(4);
    store_be32(b.data(), 101);
    receive(p, b);
    const auto done = poll();
    ASSERT_EQ(done.size(), 2u);
    EXPECT_EQ(done[0].wr_id, 1u);
    EXPECT_EQ(done[1].byte_count, 0u);
    engine_.destroy_qp(qp_, now_);
  }
}

TEST_F(QueuePairPiggybackLossTest, PsnsWrap) {
  connect_with_extensions({.sq_psn = 0xFFFFFF, .rq_psn = 0xFFFFFE});
  make_ack_due(0xFFFFFF);
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(load_be32(sent[0].packet.payload.data()), 0xFFFFFFu);
  ASSERT_TRUE(post_receive(93, 256, 1024).ok());
  wire::Packet p = request(Opcode::RcSendOnly, 0);
  p.bth.extension_flags = peer_flags().piggyback;
  Bytes b(12);
  store_be32(b.data(), 0xFF000000);  // PSN 0; the top byte is ignored
  receive(p, b);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {93, WcStatus::Success}}));
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(load_be32(sent[0].packet.payload.data()), 0u);
}

TEST_F(QueuePairPiggybackLossTest, ResetClearsTheDetectedExtensions) {
  connect_with_extensions();
  make_ack_due();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  QpAttributes attr;
  attr.state = QpState::Reset;
  engine_.modify_qp(qp(), attr, qp_attr::kState, now_);
  using namespace qp_attr;
  attr = {};
  attr.state = QpState::Init;
  attr.port = 1;
  attr.access = kRemoteWrite;
  engine_.modify_qp(qp(), attr, kState | kPkeyIndex | kPort | kAccessFlags, now_);
  attr.state = QpState::Rtr;
  attr.address.is_global = true;
  attr.address.destination = peer_gid_;
  attr.source_gid = our_gid_;
  attr.path_mtu = wire::Mtu::k256;
  attr.dest_qpn = kPeerQpn;
  attr.rq_psn = 500;
  engine_.modify_qp(qp(), attr, kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn, now_);
  ASSERT_TRUE(post_receive(93, 256, 1024).ok());
  wire::Packet p = request(Opcode::RcSendOnly, 500);
  p.bth.extension_flags = peer_flags().piggyback;
  receive(p, pattern(12));  // in RTR
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].byte_count, 8u);
  attr.state = QpState::Rts;
  attr.sq_psn = 100;
  attr.timeout = 14;
  attr.retry_count = 7;
  engine_.modify_qp(qp(), attr, kState | kSqPsn | kTimeout | kRetryCount | kRnrRetry | kMaxRdAtomic,
                    now_);
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  EXPECT_EQ(transmit_opcodes(), (std::vector{Opcode::RcSendOnly, Opcode::RcAck}));
}

// A piggybacked ACK of our own READ is not its response.
TEST_F(QueuePairPiggybackLossTest, APiggybackedAckDoesNotCompleteAReadWithoutResponse) {
  connect_with_extensions();
  ASSERT_TRUE(post(SendOp::Read, 1, 8).ok());
  transmit();
  ASSERT_TRUE(post_receive(92, 256, 1024).ok());
  wire::Packet p = request(Opcode::RcSendOnly, 501);
  p.bth.extension_flags = peer_flags().piggyback;
  Bytes b(12);
  store_be32(b.data(), 101);
  receive(p, b);
  EXPECT_EQ(completions(), (Completed{{92, WcStatus::Success}}));
  EXPECT_EQ(transmit_opcodes(), (std::vector{Opcode::RcReadRequest, Opcode::RcAck}));
}

TEST_F(QueuePairPiggybackLossTest, TheAckFollowsTheImmediateAndTheInvalidatedKey) {
  for (const SendOp op : {SendOp::SendImm, SendOp::WriteImm, SendOp::SendInvalidate}) {
    for (const uint32_t packet_bytes : {0u, 65536u}) {
      connect_with_extensions({.path_packet_bytes = packet_bytes});
      make_ack_due();
      ASSERT_TRUE(post(op, 1, 5).ok());
      const auto sent = transmit();
      ASSERT_EQ(sent.size(), 1u);
      EXPECT_EQ(sent[0].packet.payload.size(), 9u);
      EXPECT_EQ(load_be32(sent[0].packet.payload.data()), 501u);
      engine_.destroy_qp(qp_, now_);
    }
  }
}

}  // namespace
}  // namespace verbena::core
