// Unreliable datagrams: addressing, Q_Keys, the 40 bytes in front, multicast.
#include <cstring>

#include "core/ud_receiver.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;
using Done = std::vector<std::pair<uint64_t, WcStatus>>;

constexpr uint32_t kOurQkey = 0x11111111;

wire::Gid ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  const uint8_t bytes[4] = {a, b, c, d};
  return wire::Gid::from_ipv4(bytes);
}

class UdTest : public EngineTest {
 public:
  UdTest() {
    qp_ = &make_ud();
    handle_.pd = kPd;
    handle_.address.destination = peer_gid_;
    handle_.path = wire::PathId{3};
    handle_.mtu = wire::Mtu::k256;
  }

  QueuePair& make_ud(QpState state = QpState::Rts) {
    using namespace qp_attr;
    QpConfig c;
    c.type = QpType::Ud;
    c.pd = kPd;
    c.send_cq = c.receive_cq = &cq_;
    c.max_send_wr = c.max_recv_wr = 512;
    c.max_send_sge = c.max_recv_sge = 4;
    c.max_inline = 64;
    QueuePair& qp = *engine_.create_qp(c).value();
    QpAttributes attr;
    attr.state = QpState::Init;
    attr.port = 1;
    attr.qkey = kOurQkey;
    EXPECT_TRUE(qp.check_modify(attr, kState | kPkeyIndex | kPort | kQkey).ok());
    engine_.modify_qp(qp, attr, kState | kPkeyIndex | kPort | kQkey, now_);
    to_state(qp, QpState::Rtr);
    attr.state = state;
    attr.sq_psn = 100;
    engine_.modify_qp(qp, attr, kState | kSqPsn, now_);
    return qp;
  }

  SendRequest datagram(uint64_t wr_id, std::span<const Sge> sges) const {
    SendRequest r;
    r.wr_id = wr_id;
    r.flags = kSignaled;
    r.sges = sges;
    r.handle = &handle_;
    r.remote_qpn = wire::Qpn(0x020007);
    r.remote_qkey = 0x22222222;
    return r;
  }
  Status send(uint64_t wr_id, uint32_t length, uint32_t flags = kSignaled) {
    const Sge sge{kIova, length, key_};
    SendRequest r = datagram(wr_id, {&sge, 1});
    r.flags = flags;
    return engine_.post_send(*qp_, r, now_);
  }
  wire::Packet incoming(Opcode opcode = Opcode::UdSendOnly) const {
    wire::Packet p = request(opcode, 77);
    p.bth.ack_request = false;
    p.deth = {kOurQkey, wire::Qpn(0x030009)};
    p.immediate = 5;
    return p;
  }

  AddressHandle handle_;
};

TEST_F(UdTest, OneRequestOnePacket) {
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
  EXPECT_EQ(completions(), (Done{{1, WcStatus::Success}}));
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

TEST_F(UdTest, Inline) {
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

TEST_F(UdTest, AQkeyWithTheHighBitStandsForTheQueuePairsOwn) {
  const Sge sge{kIova, 8, key_};
  SendRequest r = datagram(1, {&sge, 1});
  r.remote_qkey = 0x80010000;
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  EXPECT_EQ(transmit().at(0).packet.deth.qkey, kOurQkey);
}

TEST_F(UdTest, RefusedAtPost) {
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
  refused([](SendRequest& r) { r.handle = nullptr; });
  refused([&](SendRequest& r) { r.handle = &foreign; });
  refused([&](SendRequest& r) { r.handle = &group; });
  refused([&](SendRequest& r) { r.sges = {&long_one, 1}; });
  for (const SendOp op : {SendOp::Write, SendOp::Read, SendOp::FetchAdd, SendOp::SendInvalidate,
                          SendOp::LocalInvalidate, SendOp::BindWindow}) {
    refused([&](SendRequest& r) { r.op = op; });
  }
  EXPECT_TRUE(transmit().empty());
  EXPECT_TRUE(send(1, 256).ok());  // the MTU itself fits
}

TEST_F(UdTest, ALocalErrorStopsTheSendQueueAlone) {
  const Sge bad{kIova, 8, key_ ^ 0x100};
  ASSERT_TRUE(engine_.post_send(qp(), datagram(1, {&bad, 1}), now_).ok());
  transmit();
  EXPECT_EQ(completions(), (Done{{1, WcStatus::LocalProtection}}));
  EXPECT_EQ(qp().state(), QpState::Sqe);
  ASSERT_TRUE(post_receive(2, 100).ok());
  receive(incoming(), pattern(8));
  EXPECT_EQ(completions(), (Done{{2, WcStatus::Success}}));
  to_state(qp(), QpState::Rts);
  ASSERT_TRUE(send(3, 8).ok());
  EXPECT_EQ(transmit().size(), 1u);
}

TEST_F(UdTest, ReceivesFromAnybodyWhoKnowsTheQkey) {
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
  // 20 bytes of nothing, then an IPv4 header.
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

TEST_F(UdTest, TheHeaderAreaOfIpv6IsTheIpv6Header) {
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

TEST_F(UdTest, DroppedAndCounted) {
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
  receive(incoming(), pattern(7));  // the receive that was too small is still there
  EXPECT_EQ(completions(), (Done{{1, WcStatus::Success}}));
  EXPECT_TRUE(transmit().empty());
  EXPECT_TRUE(events().empty());
}

TEST_F(UdTest, AnEmptyDatagramIsFortyBytes) {
  ASSERT_TRUE(post_receive(1, 40, 0).ok());
  receive(incoming());
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].byte_count, 40u);
}

TEST_F(UdTest, AnUnregisteredReceiveIsAnErrorOfTheQueuePair) {
  const Sge bad{kIova, 100, key_ ^ 0x100};
  ASSERT_TRUE(engine_.post_receive(qp(), {.wr_id = 1, .sges = {&bad, 1}}, now_).ok());
  ASSERT_TRUE(post_receive(2, 100).ok());
  receive(incoming(), pattern(8));
  EXPECT_EQ(completions(), (Done{{1, WcStatus::LocalProtection}, {2, WcStatus::Flushed}}));
  EXPECT_EQ(qp().state(), QpState::Error);
}

TEST_F(UdTest, NothingArrivesBeforeRtr) {
  QpConfig c = qp().config();
  QueuePair& fresh = *engine_.create_qp(c).value();
  wire::Packet p = incoming();
  p.bth.destination = fresh.qpn();
  receive(p, pattern(8));
  EXPECT_EQ(counter(CounterId::qp_not_ready), 1u);
}

TEST_F(UdTest, ABurstIsPaced) {
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

class UdPathTest : public UdTest {
 public:
  UdPathTest() { paths().open(handle_.path); }
  PathHolds& paths() { return engine_.state().paths; }
  bool idle() { return paths().idle() == std::vector{handle_.path}; }
};

TEST_F(UdPathTest, StaysUntilTheLastRequestHasLeft) {
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

TEST_F(UdPathTest, StaysWithItsHandle) {
  ASSERT_TRUE(send(1, 8).ok());
  EXPECT_EQ(transmit().size(), 1u);
  EXPECT_TRUE(paths().idle().empty());
  paths().release(handle_.path);
  EXPECT_TRUE(idle());
}

TEST_F(UdPathTest, IsNotHeldByWhatIsRefused) {
  const Sge good{kIova, 8, key_};
  const Sge long_one{kIova, 257, key_};
  const SendRequest list[] = {datagram(1, {&good, 1}), datagram(2, {&long_one, 1})};
  EXPECT_FALSE(engine_.post_send(qp(), list, now_).ok());
  paths().release(handle_.path);
  EXPECT_TRUE(idle());
}

TEST_F(UdPathTest, IsNotHeldByWhatIsFlushed) {
  ASSERT_TRUE(send(1, 8).ok());
  paths().release(handle_.path);
  EXPECT_TRUE(paths().idle().empty());
  to_state(qp(), QpState::Error);
  EXPECT_TRUE(idle());
}

TEST_F(UdPathTest, IsNotHeldByAQueuePairThatIsGone) {
  ASSERT_TRUE(send(1, 8).ok());
  paths().release(handle_.path);
  engine_.destroy_qp(qp_, now_);
  EXPECT_TRUE(idle());
}

TEST_F(UdTest, QueuePairsTakeTurns) {
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

TEST_F(UdTest, EveryMemberOfAGroupGetsACopyButTheSender) {
  const wire::Gid group = ipv4(239, 1, 2, 3);
  QueuePair& other = make_ud();
  QueuePair& outsider = make_ud();
  ASSERT_TRUE(engine_.attach(qp(), group).ok());
  ASSERT_TRUE(engine_.attach(qp(), group).ok());  // twice is once
  ASSERT_TRUE(engine_.attach(other, group).ok());
  ASSERT_TRUE(engine_.attach(outsider, ipv4(239, 1, 2, 4)).ok());
  const Sge sge{kIova, 100, key_};
  for (QueuePair* member : {&qp(), &other, &outsider}) {
    ASSERT_TRUE(
        engine_.post_receive(*member, {.wr_id = member->qpn().value(), .sges = {&sge, 1}}, now_)
            .ok());
  }
  wire::Packet p = incoming();
  p.bth.destination = wire::kMulticastQpn;
  p.deth.source = other.qpn();
  receive(p, pattern(8), {.source = our_gid_, .destination = group, .own = true});
  EXPECT_EQ(completions(), (Done{{qp().qpn().value(), WcStatus::Success}}));
  // The same number from elsewhere is somebody else.
  receive(p, pattern(8), {.source = peer_gid_, .destination = group});
  EXPECT_EQ(completions(), (Done{{other.qpn().value(), WcStatus::Success}}));
  EXPECT_EQ(counter(CounterId::no_receive_posted), 1u);  // the first member's was used up
}

TEST_F(UdTest, AttachAndDetach) {
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

TEST_F(UdTest, GroupsAreLimited) {
  for (uint32_t i = 0; i < kMaxGroups; ++i) {
    ASSERT_TRUE(
        engine_.attach(qp(), ipv4(239, 0, static_cast<uint8_t>(i >> 8), static_cast<uint8_t>(i)))
            .ok());
  }
  EXPECT_EQ(engine_.attach(qp(), ipv4(238, 0, 0, 1)).error().code, ENOMEM);
}

}  // namespace
}  // namespace verbena::core
