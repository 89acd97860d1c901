// Unreliable datagrams: Q_Keys, the 40-byte GRH area, multicast.
#include <cstring>

#include "core/ud_receiver.h"
#include "tests/unit/core/unreliable_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;

class UdReceiverTest : public UdFixture {};

TEST_F(UdReceiverTest, ReceivesFromAnySourceWithTheQkey) {
  ASSERT_TRUE(post_receive(1, 100, 0).ok());
  receive(incoming(Opcode::UdSendOnlyImm), pattern(30),
          {.source = ipv4(10, 9, 9, 9),
           .destination = our_gid_,
           .traffic_class = 0x68,
           .hop_limit = 17});
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].byte_count, 70u);
  EXPECT_EQ(done[0].flags & kWcFlags, kWcGrh | kWcWithImmediate);
  EXPECT_EQ(done[0].immediate_or_rkey, 5u);
  EXPECT_EQ(done[0].source_qpn, wire::Qpn(0x030009));
  EXPECT_EQ(done[0].qpn, qp().qpn());
  EXPECT_TRUE(std::equal(memory_.begin() + 40, memory_.begin() + 70, pattern(30).begin()));
  // 20 zero bytes, then an IPv4 header.
  const std::byte* ip = memory_.data() + 20;
  EXPECT_TRUE(std::all_of(memory_.begin(), memory_.begin() + 20,
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(load_u8(ip), 0x45);
  EXPECT_EQ(load_u8(ip + 1), 0x68);
  EXPECT_EQ(load_be16(ip + 2), 20 + 8 + 24 + 32 + 4);
  EXPECT_EQ(load_u8(ip + 8), 17);
  EXPECT_EQ(load_u8(ip + 9), 17);  // UDP
  EXPECT_EQ(load_be32(ip + 12), 0x0A090909u);
  EXPECT_EQ(load_be32(ip + 16), 0x0A000001u);
}

TEST_F(UdReceiverTest, GrhAreaHoldsTheIpv6Header) {
  wire::Gid source;
  wire::Gid destination;
  source.bytes.fill(std::byte{0x20});
  destination.bytes.fill(std::byte{0x21});
  ASSERT_TRUE(post_receive(1, 100, 0).ok());
  receive(incoming(), pattern(4),
          {.source = source, .destination = destination, .traffic_class = 0, .hop_limit = 3});
  ASSERT_EQ(completions().size(), 1u);
  EXPECT_EQ(load_u8(memory_.data()), 0x60);
  EXPECT_EQ(load_be16(memory_.data() + 4), 8 + 20 + 4 + 4);
  EXPECT_EQ(load_u8(memory_.data() + 7), 3);
  EXPECT_EQ(std::memcmp(memory_.data() + 8, &source, 16), 0);
  EXPECT_EQ(std::memcmp(memory_.data() + 24, &destination, 16), 0);
}

TEST_F(UdReceiverTest, CountsDroppedDatagrams) {
  receive(incoming(), pattern(8));
  EXPECT_EQ(counter(CounterId::no_receive_posted), 1u);

  memory_.fill(std::byte{0xEE});
  ASSERT_TRUE(post_receive(1, 47, 0).ok());
  receive(incoming(), pattern(8));
  EXPECT_EQ(counter(CounterId::receive_too_small), 1u);
  EXPECT_TRUE(std::ranges::all_of(memory_, [](std::byte b) { return b == std::byte{0xEE}; }));

  wire::Packet wrong = incoming();
  wrong.deth.qkey ^= 1;
  receive(wrong, pattern(4));
  EXPECT_EQ(counter(CounterId::wrong_qkey), 1u);

  receive(request(Opcode::RcSendOnly, 77), pattern(4));
  EXPECT_EQ(counter(CounterId::wrong_transport), 1u);

  wrong = incoming();
  wrong.bth.pkey = 0x1234;
  receive(wrong, pattern(4));
  EXPECT_EQ(counter(CounterId::wrong_pkey), 1u);

  EXPECT_TRUE(completions().empty());
  receive(incoming(), pattern(7));  // the receive that was too small is still posted
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  EXPECT_TRUE(transmit().empty());
  EXPECT_TRUE(events().empty());
}

TEST_F(UdReceiverTest, ATooLongDatagramDoesNotReachTheLimitOfASharedReceiveQueue) {
  SharedReceiveQueue* const srq = engine_.create_srq({.pd = kPd, .max_wr = 4, .max_sges = 1});
  qp_ = &make_ud(QpState::Rts, srq);
  const Sge sge{kIova, 47, key_};
  ASSERT_TRUE(srq->post({.wr_id = 1, .sges = {&sge, 1}}).ok());
  ASSERT_TRUE(engine_.modify_srq(*srq, std::nullopt, 1).ok());
  receive(incoming(), pattern(8));
  EXPECT_EQ(counter(CounterId::receive_too_small), 1u);
  EXPECT_EQ(srq->posted(), 1u);
  EXPECT_TRUE(events().empty());
  receive(incoming(), pattern(7));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  EXPECT_EQ(events(), std::vector{EventKind::SrqLimitReached});
}

TEST_F(UdReceiverTest, AnEmptyDatagramHasFortyBytes) {
  ASSERT_TRUE(post_receive(1, 40, 0).ok());
  receive(incoming());
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].byte_count, 40u);
}

TEST_F(UdReceiverTest, AnUnregisteredReceiveFailsTheQueuePair) {
  const Sge bad{kIova, 100, key_ ^ 0x100};
  ASSERT_TRUE(engine_.post_receive(qp(), {.wr_id = 1, .sges = {&bad, 1}}, now_).ok());
  ASSERT_TRUE(post_receive(2, 100).ok());
  receive(incoming(), pattern(8));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalProtection}, {2, WcStatus::Flushed}}));
  EXPECT_EQ(qp().state(), QpState::Error);
}

TEST_F(UdReceiverTest, DropsDatagramsBeforeRtr) {
  QpConfig c = qp().config();
  QueuePair& fresh = *engine_.create_qp(c).value();
  wire::Packet p = incoming();
  p.bth.destination = fresh.qpn();
  receive(p, pattern(8));
  EXPECT_EQ(counter(CounterId::qp_not_ready), 1u);
}

TEST_F(UdReceiverTest, EveryMemberOfAGroupExceptTheSenderGetsACopy) {
  const wire::Gid group = ipv4(239, 1, 2, 3);
  QueuePair& other = make_ud();
  QueuePair& other_group = make_ud();
  ASSERT_TRUE(engine_.attach(qp(), group).ok());
  ASSERT_TRUE(engine_.attach(qp(), group).ok());  // a second attach has no effect
  ASSERT_TRUE(engine_.attach(other, group).ok());
  ASSERT_TRUE(engine_.attach(other_group, ipv4(239, 1, 2, 4)).ok());
  const Sge sge{kIova, 100, key_};
  for (QueuePair* member : {&qp(), &other, &other_group}) {
    ASSERT_TRUE(
        engine_.post_receive(*member, {.wr_id = member->qpn().value(), .sges = {&sge, 1}}, now_)
            .ok());
  }
  wire::Packet p = incoming();
  p.bth.destination = wire::kMulticastQpn;
  p.deth.source = other.qpn();
  receive(p, pattern(8), {.source = our_gid_, .destination = group, .own = true});
  EXPECT_EQ(completions(), (Completed{{qp().qpn().value(), WcStatus::Success}}));
  // The same QPN at another address is another sender.
  receive(p, pattern(8), {.source = peer_gid_, .destination = group});
  EXPECT_EQ(completions(), (Completed{{other.qpn().value(), WcStatus::Success}}));
  EXPECT_EQ(counter(CounterId::no_receive_posted), 1u);  // the first member's receive is consumed
}

TEST_F(UdReceiverTest, AttachesAndDetachesUdQueuePairsOnly) {
  const wire::Gid group = ipv4(239, 1, 2, 3);
  EXPECT_EQ(engine_.attach(qp(), peer_gid_).error().code, EINVAL);
  EXPECT_EQ(engine_.detach(qp(), group).error().code, EINVAL);
  QueuePair& rc = make_connected({});
  EXPECT_EQ(engine_.attach(rc, group).error().code, EINVAL);
  ASSERT_TRUE(engine_.attach(qp(), group).ok());
  EXPECT_EQ(engine_.detach(make_ud(), group).error().code, EINVAL);
  EXPECT_TRUE(engine_.has_members(group));
  ASSERT_TRUE(engine_.detach(qp(), group).ok());
  EXPECT_FALSE(engine_.has_members(group));
  ASSERT_TRUE(engine_.attach(qp(), group).ok());
  engine_.destroy_qp(qp_, now_);
  EXPECT_FALSE(engine_.has_members(group));
}

TEST_F(UdReceiverTest, LimitsTheNumberOfGroups) {
  for (uint32_t i = 0; i < kMaxGroups; ++i) {
    ASSERT_TRUE(
        engine_.attach(qp(), ipv4(239, 0, static_cast<uint8_t>(i >> 8), static_cast<uint8_t>(i)))
            .ok());
  }
  EXPECT_EQ(engine_.attach(qp(), ipv4(238, 0, 0, 1)).error().code, ENOMEM);
}

}  // namespace
}  // namespace verbena::core
