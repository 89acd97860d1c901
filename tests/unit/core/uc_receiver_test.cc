// Unreliable connections: which packets are delivered and which are dropped.
#include "tests/unit/core/unreliable_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;

class UcReceiverTest : public UcFixture {};

TEST_F(UcReceiverTest, ReceivesAMessage) {
  ASSERT_TRUE(post_receive(7, 1000, 64).ok());
  const Bytes message = pattern(600);
  receive_uc_send(500, message);
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 7u);
  EXPECT_EQ(done[0].byte_count, 600u);
  EXPECT_EQ(done[0].source_qpn, qp().attributes().dest_qpn);
  EXPECT_TRUE(memory_is(64, message));
  EXPECT_TRUE(transmit().empty());  // no ACK
}

TEST_F(UcReceiverTest, ALostPacketDropsOnlyItsMessage) {
  for (const int lost : {0, 1, 2}) {
    SCOPED_TRACE(lost);
    const auto psn = 500u + 6u * static_cast<uint32_t>(lost);
    ASSERT_TRUE(post_receive(1, 1000, 0).ok());
    receive_uc_send(psn, pattern(600, 1), lost);
    EXPECT_TRUE(completions().empty());
    const Bytes next = pattern(600, 2);
    receive_uc_send(psn + 3, next);  // consumes the receive of the dropped message
    const auto done = poll();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, WcStatus::Success);
    EXPECT_TRUE(memory_is(0, next));
  }
  EXPECT_EQ(counter(CounterId::incomplete_messages),
            2u);  // of the first message no packet was received
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(UcReceiverTest, AFirstPacketDropsAnIncompleteMessage) {
  ASSERT_TRUE(post_receive(1, 1000, 0).ok());
  receive_uc(Opcode::RcSendFirst, 500, pattern(kMtu));
  receive_uc(Opcode::RcSendOnly, 501, pattern(8, 9));
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].byte_count, 8u);
  EXPECT_EQ(counter(CounterId::incomplete_messages), 1u);
}

TEST_F(UcReceiverTest, AnotherVerbInTheMiddleDropsTheMessage) {
  ASSERT_TRUE(post_receive(1, 1000, 0).ok());
  receive_uc(Opcode::RcSendFirst, 500, pattern(kMtu));
  receive_uc(Opcode::RcWriteLast, 501, pattern(8));
  receive_uc(Opcode::RcSendLast, 502, pattern(8));
  EXPECT_TRUE(completions().empty());
}

TEST_F(UcReceiverTest, WrongLengthsDropTheMessage) {
  ASSERT_TRUE(post_receive(1, 2000, 0).ok());
  receive_uc(Opcode::RcSendFirst, 500, pattern(kMtu - 4));
  receive_uc(Opcode::RcSendOnly, 501, pattern(kMtu + 4));
  receive_uc(Opcode::RcSendFirst, 502, pattern(kMtu));
  receive_uc(Opcode::RcSendLast, 503, {});
  receive_uc(Opcode::RcWriteOnly, 504, pattern(8), 12);
  receive_uc(Opcode::RcWriteFirst, 505, pattern(kMtu), kMtu);
  EXPECT_TRUE(completions().empty());
  EXPECT_EQ(counter(CounterId::incomplete_messages), 5u);
}

TEST_F(UcReceiverTest, DropsAMessageWithoutAReceive) {
  receive_uc_send(500, pattern(600));
  EXPECT_EQ(counter(CounterId::no_receive_posted), 1u);
  ASSERT_TRUE(post_receive(1, 1000, 0).ok());
  receive_uc_send(503, pattern(600));
  EXPECT_EQ(completions().size(), 1u);
  EXPECT_TRUE(transmit().empty());  // no RNR NAK
}

TEST_F(UcReceiverTest, DropsATooLongMessageAndKeepsTheReceive) {
  ASSERT_TRUE(post_receive(1, 300, 0).ok());
  memory_[300] = std::byte{0xEE};
  receive_uc_send(500, pattern(600));
  EXPECT_TRUE(completions().empty());
  EXPECT_EQ(counter(CounterId::receive_too_small), 1u);
  EXPECT_EQ(memory_[300], std::byte{0xEE});
  receive_uc(Opcode::RcSendOnlyImm, 503, pattern(100));
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].immediate_or_rkey, 0x11223344u);
}

TEST_F(UcReceiverTest, ExecutesWrites) {
  const Bytes message = pattern(600, 5);
  const std::span<const std::byte> all = message;
  receive_uc(Opcode::RcWriteFirst, 500, all.first(kMtu), 600);
  receive_uc(Opcode::RcWriteMiddle, 501, all.subspan(kMtu, kMtu));
  receive_uc(Opcode::RcWriteLast, 502, all.subspan(2 * kMtu));
  EXPECT_TRUE(memory_is(0, message));
  EXPECT_TRUE(completions().empty());
  ASSERT_TRUE(post_receive(3, 0).ok());
  receive_uc(Opcode::RcWriteOnlyImm, 503, all.first(100), 100);
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].opcode, WcOpcode::ReceiveWriteImm);
  EXPECT_EQ(done[0].byte_count, 100u);
}

// Otherwise one packet with a RETH length of 2 GiB would fault in that much memory.
TEST_F(UcReceiverTest, FaultsInOnlyTheReceivedBytesOfAWrite) {
  static uint64_t most;
  most = 0;
  RegionInfo region{kPd, memory_.data(), kRegionBytes, kIova, kLocalWrite | kRemoteWrite, {}};
  static MemoryBacking backing;
  region.backing = &backing;
  backing.reachable = [](const std::byte*, uint64_t bytes, bool) {
    most = std::max(most, bytes);
    return true;
  };
  wire::Packet p = request(Opcode::RcWriteFirst, 500);
  p.bth.opcode = uc(Opcode::RcWriteFirst);
  p.reth = {kIova, engine_.memory().add_region(region).value(), 100000};
  receive(p, pattern(kMtu));
  EXPECT_TRUE(memory_is(0, pattern(kMtu)));
  EXPECT_EQ(most, kMtu);
}

TEST_F(UcReceiverTest, DropsADeniedWriteAndStaysConnected) {
  wire::Packet p = request(Opcode::RcWriteOnly, 500);
  p.bth.opcode = uc(Opcode::RcWriteOnly);
  p.reth = {kIova + kRegionBytes - 4, key_, 8};
  receive(p, pattern(8));
  p.reth = {kIova, key_ ^ 0x100, 8};
  p.bth.psn = wire::Psn(501);
  receive(p, pattern(8));
  EXPECT_EQ(counter(CounterId::writes_refused), 2u);
  EXPECT_EQ(qp().state(), QpState::Rts);
  EXPECT_TRUE(events().empty());
  EXPECT_TRUE(transmit().empty());
}

TEST_F(UcReceiverTest, DropsPacketsOfOtherSourcesAndTransports) {
  ASSERT_TRUE(post_receive(1, 1000).ok());
  wire::Packet p = request(Opcode::RcSendOnly, 500);
  receive(p, pattern(8));
  EXPECT_EQ(counter(CounterId::wrong_transport), 1u);
  p.bth.opcode = uc(Opcode::RcSendOnly);
  receive(p, pattern(8), {.source = our_gid_, .destination = our_gid_});
  EXPECT_EQ(counter(CounterId::wrong_source), 1u);
  receive(p, pattern(8));
  EXPECT_EQ(completions().size(), 1u);
}

TEST_F(UcReceiverTest, AnUnregisteredReceiveFailsTheQueuePair) {
  const Sge bad{kIova, 100, key_ ^ 0x100};
  ASSERT_TRUE(engine_.post_receive(qp(), {.wr_id = 1, .sges = {&bad, 1}}, now_).ok());
  receive_uc(Opcode::RcSendOnly, 500, pattern(8));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalProtection}}));
  EXPECT_EQ(qp().state(), QpState::Error);
  EXPECT_EQ(events(), std::vector{EventKind::QpFatal});
}

}  // namespace
}  // namespace verbena::core
