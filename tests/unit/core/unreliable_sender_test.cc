// Packets of UC and UD, their pacing, and how long their path stays open.
#include "core/unreliable_sender.h"

#include <cstring>

#include "tests/unit/core/unreliable_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;

class UcSenderTest : public UcFixture {};
class UdSenderTest : public UdFixture {};

TEST_F(UcSenderTest, SegmentsMessagesAndRequestsNoAck) {
  ASSERT_TRUE(post(SendOp::Send, 1, 600).ok());
  ASSERT_TRUE(post(SendOp::SendImm, 2, 10).ok());
  ASSERT_TRUE(post(SendOp::Write, 3, 256).ok());
  ASSERT_TRUE(post(SendOp::WriteImm, 4, 300).ok());
  const auto sent = transmit();
  const std::vector<uint8_t> expected = {uc(Opcode::RcSendFirst),   uc(Opcode::RcSendMiddle),
                                         uc(Opcode::RcSendLast),    uc(Opcode::RcSendOnlyImm),
                                         uc(Opcode::RcWriteOnly),   uc(Opcode::RcWriteFirst),
                                         uc(Opcode::RcWriteLastImm)};
  ASSERT_EQ(sent.size(), expected.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].packet.bth.opcode, expected[i]);
    EXPECT_FALSE(sent[i].packet.bth.ack_request);
    EXPECT_EQ(sent[i].psn(), 100 + i);
    EXPECT_EQ(sent[i].packet.bth.destination, qp().attributes().dest_qpn);
  }
  EXPECT_EQ(sent[4].packet.reth.length, 256u);
  EXPECT_EQ(sent[4].packet.reth.rkey, 0x1234u);
}

TEST_F(UcSenderTest, CompletesWhenTheLastPacketIsHandedOver) {
  ASSERT_TRUE(post(SendOp::Send, 1, 600).ok());
  transmit(2);
  EXPECT_TRUE(completions().empty());
  transmit(1);
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].opcode, WcOpcode::Send);
  EXPECT_EQ(done[0].status, WcStatus::Success);
  EXPECT_EQ(engine_.next_deadline(), kNever);  // nothing to wait for
}

class UcCnpTest : public UcSenderTest {
 protected:
  UcCnpTest() { connect({.depth = 512, .type = QpType::Uc}); }

  static constexpr uint32_t kCount = 200;
  static constexpr uint32_t kCost = kMtu + UnackedPace::kPacketOverhead;

  // How long kCount messages of one packet take.
  Duration time_to_send() {
    for (uint32_t i = 0; i < kCount; ++i) EXPECT_TRUE(post(SendOp::Write, i, kMtu).ok());
    const Instant start = now_;
    size_t sent = transmit().size();
    while (sent < kCount && next_deadline()) sent += transmit().size();
    EXPECT_EQ(sent, kCount);
    poll();
    return now_ - start;
  }
  void receive_cnp(const wire::Gid& source) {
    wire::Packet p = request(Opcode::Cnp, 0);
    p.bth.ack_request = false;
    p.bth.becn = true;
    receive(p, {}, {.source = source, .destination = our_gid_});
  }
  static Duration at(uint64_t bytes_per_second) {
    return nanoseconds(
        static_cast<int64_t>(uint64_t{kCount} * kCost * 1'000'000'000 / bytes_per_second));
  }
};

TEST_F(UcCnpTest, ACnpSlowsTheSender) {
  const Duration before = time_to_send();
  EXPECT_LT(before, at(UnackedPace::kBytesPerSecond));
  now_ = now_ + seconds(1);
  receive_cnp(peer_gid_);
  EXPECT_GT(time_to_send(), before * 3 / 2);
}

TEST_F(UcCnpTest, ManyCnpsSlowItNoFurtherThanTheFloor) {
  for (int i = 0; i < 1000; ++i) receive_cnp(peer_gid_);
  const Duration taken = time_to_send();
  EXPECT_GT(taken, milliseconds(10));
  EXPECT_LT(taken, at(DcqcnRate::kMinRate));
}

TEST_F(UcCnpTest, TheRateRecoversWithoutCnps) {
  for (int i = 0; i < 10; ++i) receive_cnp(peer_gid_);
  now_ = now_ + seconds(1);
  EXPECT_LT(time_to_send(), at(UnackedPace::kBytesPerSecond));
}

TEST_F(UcCnpTest, ACnpOfAnotherHostChangesNothing) {
  for (int i = 0; i < 10; ++i) receive_cnp(wire::Gid{});
  EXPECT_LT(time_to_send(), at(UnackedPace::kBytesPerSecond));
}

TEST_F(UcSenderTest, RejectsOperationsThatUcLacks) {
  for (const SendOp op : {SendOp::Read, SendOp::CompareSwap, SendOp::FetchAdd,
                          SendOp::SendInvalidate, SendOp::Flush, SendOp::AtomicWrite}) {
    EXPECT_EQ(post(op, 1, 8).error().code, EINVAL) << name_of(op);
  }
  EXPECT_TRUE(transmit().empty());
}

TEST_F(UcSenderTest, ALocalErrorStopsOnlyTheSendQueue) {
  const Sge bad{kIova, 8, key_ ^ 0x100};
  SendRequest r;
  r.wr_id = 1;
  r.sges = {&bad, 1};
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalProtection}, {2, WcStatus::Flushed}}));
  EXPECT_EQ(qp().state(), QpState::Sqe);
  ASSERT_TRUE(post(SendOp::Send, 3, 8).ok());
  EXPECT_EQ(completions(), (Completed{{3, WcStatus::Flushed}}));

  ASSERT_TRUE(post_receive(4, 100).ok());  // the receive side still works
  receive_uc(Opcode::RcSendOnly, 500, pattern(8));
  EXPECT_EQ(completions(), (Completed{{4, WcStatus::Success}}));

  to_state(qp(), QpState::Rts);
  ASSERT_TRUE(post(SendOp::Send, 5, 8).ok());
  EXPECT_EQ(transmit().size(), 1u);
  EXPECT_EQ(completions(), (Completed{{5, WcStatus::Success}}));
}

TEST_F(UcSenderTest, SqdFinishesTheStartedMessage) {
  ASSERT_TRUE(post(SendOp::Send, 1, 600).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  EXPECT_EQ(transmit(1).size(), 1u);
  QpAttributes attr;
  attr.state = QpState::Sqd;
  attr.sqd_notify = true;
  engine_.modify_qp(qp(), attr, qp_attr::kState | qp_attr::kEnSqdAsyncNotify, now_);
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(transmit().size(), 2u);
  EXPECT_EQ(events(), std::vector{EventKind::SqDrained});
  EXPECT_EQ(completions().size(), 1u);
  to_state(qp(), QpState::Rts);
  EXPECT_EQ(transmit().size(), 1u);
}

TEST_F(UcSenderTest, DoesNotWaitBehindAnRcWindowThatItDoesNotUse) {
  TestShape rc;
  rc.timeout = 0;
  connect(rc);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(post(SendOp::Write, 10 + i, 128 * 1024).ok());
  EXPECT_FALSE(transmit().empty());
  TestShape uc;
  uc.type = QpType::Uc;
  connect(uc);
  ASSERT_TRUE(post(SendOp::Send, 2, 256).ok());
  EXPECT_EQ(transmit().size(), 1u);
}

TEST_F(UdSenderTest, SendsOnePacketPerRequest) {
  std::ranges::copy(pattern(200), memory_.begin());
  const Sge sges[] = {{kIova, 10, key_}, {kIova + 100, 0, key_}, {kIova + 10, 21, key_}};
  SendRequest r = datagram(1, sges);
  r.op = SendOp::SendImm;
  r.immediate_or_rkey = 0xABCD;
  r.flags |= kSolicited;
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  const wire::Packet& p = sent[0].packet;
  EXPECT_EQ(sent[0].opcode(), Opcode::UdSendOnlyImm);
  EXPECT_EQ(p.bth.destination, wire::Qpn(0x020007));
  EXPECT_EQ(p.bth.psn.value(), 100u);
  EXPECT_FALSE(p.bth.ack_request);
  EXPECT_TRUE(p.bth.solicited);
  EXPECT_EQ(p.deth.qkey, 0x22222222u);
  EXPECT_EQ(p.deth.source, qp().qpn());
  EXPECT_EQ(p.immediate, 0xABCDu);
  EXPECT_TRUE(std::ranges::equal(p.payload, pattern(31)));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

TEST_F(UdSenderTest, CopiesInlineDataWhenPosted) {
  Bytes bytes = pattern(20);
  const Sge sge{reinterpret_cast<uint64_t>(bytes.data()), 20, 0};
  SendRequest r = datagram(1, {&sge, 1});
  r.flags |= kInline;
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  std::ranges::fill(bytes, std::byte{0});
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(std::ranges::equal(sent[0].packet.payload, pattern(20)));
}

TEST_F(UdSenderTest, AQkeyWithTheHighBitSelectsTheQueuePairsOwnQkey) {
  const Sge sge{kIova, 8, key_};
  SendRequest r = datagram(1, {&sge, 1});
  r.datagram.qkey = 0x80010000;
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  EXPECT_EQ(transmit().at(0).packet.deth.qkey, kOurQkey);
}

TEST_F(UdSenderTest, RejectsInvalidRequests) {
  const Sge sge{kIova, 8, key_};
  const auto refused = [&](auto change) {
    SendRequest r = datagram(1, {&sge, 1});
    change(r);
    EXPECT_EQ(engine_.post_send(qp(), r, now_).error().code, EINVAL);
  };
  AddressHandle foreign = handle_;
  foreign.pd = kPd + 1;
  AddressHandle group = handle_;
  group.address.destination = ipv4(224, 0, 1, 9);
  const Sge long_one{kIova, 257, key_};
  refused([](SendRequest& r) { r.datagram.handle = nullptr; });
  refused([&](SendRequest& r) { r.datagram.handle = &foreign; });
  refused([&](SendRequest& r) { r.datagram.handle = &group; });
  refused([&](SendRequest& r) { r.sges = {&long_one, 1}; });
  for (const SendOp op : {SendOp::Write, SendOp::Read, SendOp::FetchAdd, SendOp::SendInvalidate,
                          SendOp::LocalInvalidate, SendOp::BindWindow}) {
    refused([&](SendRequest& r) { r.op = op; });
  }
  EXPECT_TRUE(transmit().empty());
  EXPECT_TRUE(send(1, 256).ok());  // the MTU itself fits
}

TEST_F(UdSenderTest, ALocalErrorStopsOnlyTheSendQueue) {
  const Sge bad{kIova, 8, key_ ^ 0x100};
  ASSERT_TRUE(engine_.post_send(qp(), datagram(1, {&bad, 1}), now_).ok());
  transmit();
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalProtection}}));
  EXPECT_EQ(qp().state(), QpState::Sqe);
  ASSERT_TRUE(post_receive(2, 100).ok());
  receive(incoming(), pattern(8));
  EXPECT_EQ(completions(), (Completed{{2, WcStatus::Success}}));
  to_state(qp(), QpState::Rts);
  ASSERT_TRUE(send(3, 8).ok());
  EXPECT_EQ(transmit().size(), 1u);
}

TEST_F(UdSenderTest, PacesABurst) {
  constexpr uint32_t kCost = 256 + UnackedPace::kPacketOverhead;
  constexpr uint32_t kCount = 400;
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_TRUE(send(i, 256, 0).ok());
  size_t sent = transmit().size();
  EXPECT_GT(sent, 0u);
  EXPECT_LE(sent * kCost, UnackedPace::kBurstBytes + UnackedPace::kQuantumBytes);
  const Instant start = now_;
  while (sent < kCount) {
    ASSERT_TRUE(next_deadline());
    const size_t n = transmit().size();
    EXPECT_GT(n, 0u);
    EXPECT_LE(n * kCost, UnackedPace::kQuantumBytes + 2 * kCost);
    sent += n;
  }
  const int64_t beyond_burst = int64_t{kCount} * kCost - UnackedPace::kBurstBytes;
  EXPECT_NEAR(static_cast<double>((now_ - start).ns),
              static_cast<double>(beyond_burst) * 1e9 / UnackedPace::kBytesPerSecond, 200'000);
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

TEST_F(UdSenderTest, QueuePairsTakeTurns) {
  QueuePair& first = qp();
  QueuePair& second = make_ud();
  for (uint32_t i = 0; i < 200; ++i) {
    qp_ = &first;
    ASSERT_TRUE(send(i, 256, 0).ok());
    qp_ = &second;
    ASSERT_TRUE(send(1000 + i, 256, 0).ok());
  }
  size_t of_first = 0;
  size_t of_second = 0;
  for (int turn = 0; turn < 8; ++turn) {
    for (const Sent& s : transmit()) {
      ++(s.packet.deth.source == first.qpn() ? of_first : of_second);
    }
    ASSERT_TRUE(next_deadline());
  }
  EXPECT_GT(of_first, 60u);
  EXPECT_GT(of_second, 60u);
}

class UdPathTest : public UdSenderTest {
 public:
  UdPathTest() { paths().open(handle_.path); }
  PathReferences& paths() { return engine_.state().paths; }
  bool idle() { return paths().idle() == std::vector{handle_.path}; }
};

TEST_F(UdPathTest, StaysOpenUntilTheLastRequestHasLeft) {
  constexpr size_t kCount = 400;
  for (size_t i = 0; i < kCount; ++i) ASSERT_TRUE(send(i, 256, 0).ok());
  paths().release(handle_.path);
  size_t sent = transmit().size();
  ASSERT_LT(sent, kCount);
  while (sent < kCount) {
    EXPECT_TRUE(paths().idle().empty());
    ASSERT_TRUE(next_deadline());
    sent += transmit().size();
  }
  EXPECT_TRUE(idle());
}

TEST_F(UdPathTest, StaysOpenWhileItsHandleExists) {
  ASSERT_TRUE(send(1, 8).ok());
  EXPECT_EQ(transmit().size(), 1u);
  EXPECT_TRUE(paths().idle().empty());
  paths().release(handle_.path);
  EXPECT_TRUE(idle());
}

TEST_F(UdPathTest, IsNotReferencedByRejectedRequests) {
  const Sge good{kIova, 8, key_};
  const Sge long_one{kIova, 257, key_};
  const SendRequest list[] = {datagram(1, {&good, 1}), datagram(2, {&long_one, 1})};
  EXPECT_FALSE(engine_.post_send(qp(), list, now_).ok());
  paths().release(handle_.path);
  EXPECT_TRUE(idle());
}

TEST_F(UdPathTest, IsNotReferencedByFlushedRequests) {
  ASSERT_TRUE(send(1, 8).ok());
  paths().release(handle_.path);
  EXPECT_TRUE(paths().idle().empty());
  to_state(qp(), QpState::Error);
  EXPECT_TRUE(idle());
}

TEST_F(UdPathTest, IsNotReferencedByADestroyedQueuePair) {
  ASSERT_TRUE(send(1, 8).ok());
  paths().release(handle_.path);
  engine_.destroy_qp(qp_, now_);
  EXPECT_TRUE(idle());
}

}  // namespace
}  // namespace verbena::core
