// Queue pair 1: which packets it accepts, which it sends, and its limits.
#include "core/management_port.h"

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

class ManagementPortTest : public EngineTest {
 protected:
  static wire::Packet to_port() {
    wire::Packet p;
    p.bth.opcode = static_cast<uint8_t>(wire::Opcode::UdSendOnly);
    p.bth.destination = wire::kManagementQpn;
    p.deth = {.qkey = kManagementQkey, .source = wire::kManagementQpn};
    return p;
  }
  ManagementPort& port() { return engine_.management(); }
  Bytes mad_ = pattern(kMadBytes);
};

TEST_F(ManagementPortTest, QueuesAMadWithItsAddresses) {
  ManagementDatagram got;
  EXPECT_FALSE(port().take(got));
  receive(to_port(), mad_, {.source = peer_gid_, .destination = our_gid_, .forwarded = true});
  EXPECT_TRUE(port().has_datagrams());
  ASSERT_TRUE(port().take(got));
  EXPECT_TRUE(std::ranges::equal(got.mad(), mad_));
  EXPECT_EQ(got.meta.source, peer_gid_);
  EXPECT_EQ(got.meta.destination, our_gid_);
  EXPECT_TRUE(got.meta.forwarded);
  EXPECT_EQ(wire::Bth::load(got.packet.data()).destination, wire::kManagementQpn);
  EXPECT_FALSE(port().has_datagrams());
}

TEST_F(ManagementPortTest, CountsAndDropsPacketsThatAreNoMads) {
  wire::Packet p = to_port();
  p.deth.qkey = 0x11111111;
  receive(p, mad_);
  EXPECT_EQ(counter(CounterId::wrong_qkey), 1u);
  p = to_port();
  p.bth.pkey = 0x1234;
  receive(p, mad_);
  EXPECT_EQ(counter(CounterId::wrong_pkey), 1u);
  p = to_port();
  p.bth.opcode = static_cast<uint8_t>(wire::Opcode::RcSendOnly);
  receive(p, mad_);
  p.bth.opcode = static_cast<uint8_t>(wire::Opcode::UdSendOnlyImm);
  receive(p, mad_);
  EXPECT_EQ(counter(CounterId::wrong_transport), 2u);
  p = to_port();
  p.deth.source = wire::Qpn(77);
  receive(p, mad_);
  receive(to_port(), pattern(kMadBytes - 1));
  receive(to_port(), pattern(kMadBytes + 4));
  receive(to_port(), {});
  EXPECT_EQ(counter(CounterId::bad_management), 4u);
  p = to_port();
  p.bth.destination = wire::Qpn(0);
  receive(p, mad_);
  EXPECT_EQ(counter(CounterId::unknown_qp), 1u);
  EXPECT_FALSE(port().has_datagrams());
}

TEST_F(ManagementPortTest, AcceptsALimitedMemberOfThePartition) {
  wire::Packet p = to_port();
  p.bth.pkey = 0x7FFF;
  receive(p, mad_);
  EXPECT_TRUE(port().has_datagrams());
}

TEST_F(ManagementPortTest, SendsMadsFromQueuePairOneWithConsecutivePsns) {
  const auto path = static_cast<wire::PathId>(3);
  EXPECT_FALSE(engine_.anything_to_send());
  for (int i = 0; i < 3; ++i) port().send(path, std::span<const std::byte, kMadBytes>(mad_));
  EXPECT_TRUE(engine_.anything_to_send());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sent[i].opcode(), wire::Opcode::UdSendOnly);
    EXPECT_EQ(sent[i].psn(), i);
    EXPECT_EQ(sent[i].packet.bth.destination, wire::kManagementQpn);
    EXPECT_EQ(sent[i].packet.deth.source, wire::kManagementQpn);
    EXPECT_EQ(sent[i].packet.deth.qkey, kManagementQkey);
    EXPECT_TRUE(std::ranges::equal(sent[i].packet.payload, mad_));
  }
  EXPECT_FALSE(engine_.anything_to_send());
  EXPECT_EQ(counter(CounterId::packets_sent), 3u);
}

TEST_F(ManagementPortTest, SendsTheRestLaterIfTheSinkIsFull) {
  class OneAtATime final : public wire::PacketSink {
   public:
    size_t room() const override { return 1 - pushed; }
    void push(const wire::TxPacket&) override { ++pushed; }
    size_t pushed = 0;
  };
  for (int i = 0; i < 2; ++i) port().send({}, std::span<const std::byte, kMadBytes>(mad_));
  OneAtATime first, second;
  EXPECT_TRUE(engine_.poll_transmit(first, now_));
  EXPECT_EQ(first.pushed, 1u);
  EXPECT_FALSE(engine_.poll_transmit(second, now_));
  EXPECT_EQ(second.pushed, 1u);
}

// The owner may close a path while a MAD still waits to be sent on it.
TEST_F(ManagementPortTest, AQueuedMadReferencesItsPath) {
  const auto path = static_cast<wire::PathId>(5);
  PathReferences& paths = engine_.state().paths;
  paths.open(path);
  port().send(path, std::span<const std::byte, kMadBytes>(mad_));
  paths.release(path);
  EXPECT_TRUE(paths.idle().empty());
  transmit();
  EXPECT_EQ(paths.idle().size(), 1u);
}

TEST_F(ManagementPortTest, BoundsTheQueuesOfBothDirections) {
  for (int i = 0; i < 10'000; ++i) receive(to_port(), mad_);
  const uint64_t in = counter(CounterId::management_overruns);
  EXPECT_GT(in, 5'000u);
  size_t taken = 0;
  for (ManagementDatagram got; port().take(got);) ++taken;
  EXPECT_EQ(taken + in, 10'000u);
  for (int i = 0; i < 10'000; ++i) port().send({}, std::span<const std::byte, kMadBytes>(mad_));
  EXPECT_EQ(transmit(20'000).size() + counter(CounterId::management_overruns) - in, 10'000u);
}

// The peer expects a response, so the owner must not defer its next transmit.
TEST_F(ManagementPortTest, AMadMakesAResponseDue) {
  const wire::Packet p = to_port();
  Bytes bytes(wire::kMaxHeaderBytes);
  bytes.resize(wire::store_headers(p, bytes.data()));
  bytes.insert(bytes.end(), mad_.begin(), mad_.end());
  const wire::RxMeta meta{};
  const wire::RxPacket rx{bytes, &meta};
  EXPECT_TRUE(engine_.on_packets({&rx, 1}, now_).responses_due);
}

}  // namespace
}  // namespace verbena::core
