// ECN marks of received packets: CNPs to any RoCE peer, the echo in ACKs between two Verbenas, and
// what congestion control learns from both.
#include <string>

#include "base/bytes.h"
#include "tests/unit/core/piggyback_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;

struct Acked {
  uint32_t bytes;
  bool marked;
};
struct Reports {
  std::vector<Acked> acked;
  int cnps = 0;
  bool any_marked() const {
    return std::ranges::any_of(acked, [](const Acked& a) { return a.marked; });
  }
};
Reports reports;

class RecordingControl final : public CongestionControl {
 public:
  RecordingControl() : CongestionControl(1 << 20) {}
  void on_acked(const AckEvent& event) override {
    reports.acked.push_back({event.bytes, event.marked});
  }
  void on_lost(const LossEvent&) override {}
  void on_timed_out(Instant) override {}
  void on_cnp(Instant) override { ++reports.cnps; }
  void on_round_trip(Duration, Instant) override {}
};

constexpr CongestionAlgorithm kRecording{
    "recording", "",
    []() -> std::unique_ptr<CongestionControl> { return std::make_unique<RecordingControl>(); }};

class QueuePairEcnTest : public PiggybackFixture {
 protected:
  QueuePairEcnTest() : PiggybackFixture(kRecording) { reports = {}; }

  wire::RxMeta arrives_with(uint8_t ecn) const {
    return {.source = peer_gid_,
            .destination = our_gid_,
            .traffic_class = static_cast<uint8_t>(0x68 | ecn)};
  }
  // The peer's WRITE of eight bytes.
  void receive_write(uint32_t psn, uint8_t ecn, uint8_t extension_flags = 0,
                     Opcode opcode = Opcode::RcWriteOnly) {
    wire::Packet p = request(opcode, psn);
    p.bth.extension_flags = extension_flags;
    p.reth.length = 8;
    receive(p, pattern(8), arrives_with(ecn));
  }
  wire::Packet cnp() const {
    wire::Packet p = request(Opcode::Cnp, 0);
    p.bth.ack_request = false;
    p.bth.becn = true;
    return p;
  }
  wire::Packet ack(uint32_t psn, bool becn) const {
    wire::Packet p = request(Opcode::RcAck, psn);
    p.aeth = {wire::AckKind::Ack, wire::kUnlimitedCredits, 0};
    p.bth.becn = becn;
    return p;
  }
};

std::string hex(const Bytes& bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

// --- CNPs ----------------------------------------------------------------------------------------

// Except for the QPN, these are the bytes of a CNP that a ConnectX sent, without the ICRC.
TEST_F(QueuePairEcnTest, SendsTheCnpOfHardware) {
  connect();
  receive_write(500, wire::kCe);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(hex(sent[0].bytes), "8100ffff40020007" + std::string(40, '0'));
  EXPECT_FALSE(sent[0].ecn_capable);
  EXPECT_EQ(sent[1].opcode(), Opcode::RcAck);
  EXPECT_FALSE(sent[1].packet.bth.becn);
  EXPECT_TRUE(sent[1].ecn_capable);
  EXPECT_EQ(counter(CounterId::np_cnp_sent), 1u);
  EXPECT_EQ(counter(CounterId::np_ecn_marked_roce_packets), 1u);
}

TEST_F(QueuePairEcnTest, SendsAtMostOneCnpInFiftyMicroseconds) {
  connect();
  const Instant start = now_;
  for (uint32_t i = 0; i < 10; ++i) {
    now_ = start + microseconds(5 * i);
    receive_write(500 + i, wire::kCe);
    transmit();
  }
  EXPECT_EQ(counter(CounterId::np_cnp_sent), 1u);
  now_ = start + microseconds(50);
  EXPECT_TRUE(transmit().empty());  // only a further mark leads to a further CNP
  receive_write(510, wire::kCe);
  transmit();
  EXPECT_EQ(counter(CounterId::np_cnp_sent), 2u);
  EXPECT_EQ(counter(CounterId::np_ecn_marked_roce_packets), 11u);
}

TEST_F(QueuePairEcnTest, LimitsTheCnpsOfEachQueuePairByItself) {
  connect();
  receive_write(500, wire::kCe);
  qp_ = &make_connected({});
  receive_write(500, wire::kCe);
  transmit();
  EXPECT_EQ(counter(CounterId::np_cnp_sent), 2u);
}

TEST_F(QueuePairEcnTest, PacketsWithoutAMarkCauseNoCnp) {
  connect();
  uint32_t psn = 500;
  for (const uint8_t ecn : std::initializer_list<uint8_t>{0, 1, 2}) {  // Not-ECT, ECT(1), ECT(0)
    receive_write(psn++, ecn);
    EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::RcAck});
  }
  EXPECT_EQ(counter(CounterId::np_ecn_marked_roce_packets), 0u);
}

TEST_F(QueuePairEcnTest, AMarkedPacketOfAnotherHostCausesNoCnp) {
  connect();
  wire::RxMeta meta = arrives_with(wire::kCe);
  meta.source = our_gid_;
  receive(request(Opcode::RcWriteOnly, 500), {}, meta);
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(counter(CounterId::np_ecn_marked_roce_packets), 0u);
}

TEST_F(QueuePairEcnTest, MarkedUcPacketsCauseACnp) {
  connect({.type = QpType::Uc});
  receive_write(500, wire::kCe, 0,
                static_cast<Opcode>(wire::with_base(wire::kUcBase, Opcode::RcWriteOnly)));
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::Cnp});
}

TEST_F(QueuePairEcnTest, MarkedReadResponsesOfAPlainPeerCauseACnpAndCountAsMarked) {
  connect();
  ASSERT_TRUE(post(SendOp::Read, 1, 8).ok());
  transmit();
  receive(request(Opcode::RcReadResponseOnly, 100), pattern(8), arrives_with(wire::kCe));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::Cnp});
  EXPECT_TRUE(reports.any_marked());
}

TEST_F(QueuePairEcnTest, AFailedQueuePairSendsNoCnp) {
  connect();
  receive_write(500, wire::kCe);
  to_state(qp(), QpState::Error);
  EXPECT_TRUE(transmit().empty());
}

TEST_F(QueuePairEcnTest, ACnpOfThePeerReachesCongestionControl) {
  connect();
  receive(cnp());
  EXPECT_EQ(reports.cnps, 1);
  EXPECT_EQ(counter(CounterId::rp_cnp_handled), 1u);
  EXPECT_EQ(counter(CounterId::rp_cnp_ignored), 0u);
}

TEST_F(QueuePairEcnTest, ForgedCnpsAreCountedAndIgnored) {
  connect();
  QueuePair& unconnected = *engine_.create_qp(qp().config()).value();
  std::vector<wire::Packet> forged(4, cnp());
  forged[0].bth.destination = wire::Qpn::of_slot(1, 63);  // no such queue pair
  forged[1].bth.destination = unconnected.qpn();
  forged[2].bth.becn = false;
  forged[3].bth.pkey = 0x1234;
  for (const wire::Packet& p : forged) receive(p);
  wire::RxMeta other_source = arrives_with(0);
  other_source.source = our_gid_;
  receive(cnp(), {}, other_source);
  wire::RxMeta other_destination = arrives_with(0);
  other_destination.destination = peer_gid_;
  receive(cnp(), {}, other_destination);
  EXPECT_EQ(reports.cnps, 0);
  EXPECT_EQ(counter(CounterId::rp_cnp_handled), 0u);
  EXPECT_EQ(counter(CounterId::rp_cnp_ignored), 6u);
}

TEST_F(QueuePairEcnTest, ACnpWithAMarkCausesNoCnp) {
  connect();
  receive(cnp(), {}, arrives_with(wire::kCe));
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(counter(CounterId::np_ecn_marked_roce_packets), 0u);
}

// --- the echo between two Verbenas ---------------------------------------------------------------

TEST_F(QueuePairEcnTest, TheAckToAVerbenaEchoesTheMark) {
  connect_with_extensions();
  receive_write(501, wire::kCe, peer_flags().sack);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcAck);
  EXPECT_TRUE(sent[0].packet.bth.becn);
  EXPECT_EQ(counter(CounterId::np_cnp_sent), 0u);
}

TEST_F(QueuePairEcnTest, OneAckOfSeveralPacketsEchoesTheMarkOfOneOnce) {
  connect_with_extensions();
  receive_write(501, wire::kEct0, peer_flags().sack);
  receive_write(502, wire::kCe, peer_flags().sack);
  receive_write(503, wire::kEct0, peer_flags().sack);
  auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].packet.bth.becn);
  receive_write(504, wire::kEct0, peer_flags().sack);
  sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_FALSE(sent[0].packet.bth.becn);
}

TEST_F(QueuePairEcnTest, APiggybackedAckEchoesTheMark) {
  connect_with_extensions();
  receive_write(501, wire::kCe, peer_flags().sack);
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.bth.extension_flags, own_flags().piggyback);
  EXPECT_TRUE(sent[0].packet.bth.becn);
}

TEST_F(QueuePairEcnTest, AReadResponseEchoesTheMarkOfTheReadRequest) {
  connect_with_extensions();
  wire::Packet read = request(Opcode::RcReadRequest, 501);
  read.bth.extension_flags = peer_flags().sack;
  read.reth.length = 8;
  receive(read, {}, arrives_with(wire::kCe));
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcReadResponseOnly);
  EXPECT_TRUE(sent[0].packet.bth.becn);
}

TEST_F(QueuePairEcnTest, AnEchoMarksAllThatItsAckAcknowledges) {
  connect_with_extensions();
  reports = {};
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(post(SendOp::Send, i, 8).ok());
  transmit();
  receive(ack(103, true));
  ASSERT_EQ(reports.acked.size(), 3u);
  for (const Acked& a : reports.acked) EXPECT_TRUE(a.marked);
  ASSERT_TRUE(post(SendOp::Send, 4, 8).ok());
  transmit();
  receive(ack(104, false));
  ASSERT_EQ(reports.acked.size(), 4u);
  EXPECT_FALSE(reports.acked.back().marked);
}

TEST_F(QueuePairEcnTest, AnEchoInAPiggybackedAckCounts) {
  connect_with_extensions();
  reports = {};
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  ASSERT_TRUE(post_receive(92, 256, 1024).ok());
  wire::Packet p = request(Opcode::RcSendOnly, 501);
  p.bth.extension_flags = peer_flags().piggyback;
  p.bth.becn = true;
  Bytes bytes(kPiggybackBytes + 8);
  store_be32(bytes.data(), 101);
  receive(p, bytes);
  EXPECT_EQ(completions().size(), 2u);
  EXPECT_TRUE(reports.any_marked());
}

// A Verbena may have sent it before it knew its peer.
TEST_F(QueuePairEcnTest, ACnpOfAVerbenaChangesNothing) {
  connect_with_extensions();
  receive(cnp());
  EXPECT_EQ(reports.cnps, 0);
  EXPECT_EQ(counter(CounterId::rp_cnp_ignored), 1u);
}

TEST_F(QueuePairEcnTest, BecnInTheAckOfAPlainPeerIsNoEcho) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive(ack(100, true));
  EXPECT_EQ(reports.acked.size(), 1u);
  EXPECT_FALSE(reports.any_marked());
}

TEST_F(QueuePairEcnTest, MarkedReadResponsesOfAVerbenaCountAsMarkedWithoutACnp) {
  connect_with_extensions();
  reports = {};
  ASSERT_TRUE(post(SendOp::Read, 1, 8).ok());
  transmit();
  receive(request(Opcode::RcReadResponseOnly, 101), pattern(8), arrives_with(wire::kCe));
  EXPECT_TRUE(reports.any_marked());
  EXPECT_TRUE(transmit().empty());
}

}  // namespace
}  // namespace verbena::core
