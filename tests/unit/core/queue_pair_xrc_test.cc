// XRC: a queue pair has only a requester or only a responder; each request names a shared receive
// queue.
#include <algorithm>

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::NakCode;
using wire::Opcode;
using Events = std::vector<EventKind>;

constexpr uint32_t kDomain = 77;

Opcode xrc(Opcode rc) { return static_cast<Opcode>(wire::with_base(wire::kXrcBase, rc)); }

class XrcTest : public EngineTest {
 public:
  void connect_receiver() {
    srq_ = make_srq(kDomain);
    TestShape shape;
    shape.type = QpType::XrcReceive;
    shape.xrc_domain = kDomain;
    connect(shape);
  }

  void connect_sender() {
    TestShape shape;
    shape.type = QpType::XrcSend;
    connect(shape);
  }

  SharedReceiveQueue* make_srq(uint32_t domain, uint32_t pd = kPd) {
    return engine_.create_srq(
        {.pd = pd, .max_wr = 4, .max_sges = 1, .xrc_domain = domain, .cq = &srq_cq_});
  }

  Status post_to(SharedReceiveQueue& srq, uint64_t wr_id, uint32_t length = 1024) {
    const Sge sge{kIova, length, key_};
    return srq.post({.wr_id = wr_id, .sges = {&sge, 1}});
  }

  wire::Packet to_srq(Opcode rc, uint32_t psn, const SharedReceiveQueue& srq) {
    wire::Packet p = request(xrc(rc), psn);
    p.xrc_srqn = srq.number();
    return p;
  }

  Completed received() {
    Completed out;
    Completion c;
    while (srq_cq_.poll(&c, 1) == 1) {
      EXPECT_EQ(c.qpn, qp().qpn());
      out.emplace_back(c.wr_id, c.status);
    }
    return out;
  }

  void expect_refused(const wire::Packet& p, std::span<const std::byte> payload = {},
                      NakCode code = NakCode::InvalidRequest) {
    receive(p, payload);
    const auto sent = transmit();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].opcode(), xrc(Opcode::RcAck));
    EXPECT_EQ(sent[0].packet.aeth.kind, AckKind::Nak);
    EXPECT_EQ(sent[0].packet.aeth.value, static_cast<uint8_t>(code));
    EXPECT_EQ(qp().state(), QpState::Error);
  }

  CompletionQueue srq_cq_{64};
  SharedReceiveQueue* srq_ = nullptr;
};

TEST_F(XrcTest, SendCompletesInTheCqOfItsSrq) {
  connect_receiver();
  SharedReceiveQueue* other = make_srq(kDomain);
  ASSERT_TRUE(post_to(*srq_, 1).ok());
  ASSERT_TRUE(post_to(*other, 2).ok());
  receive(to_srq(Opcode::RcSendOnly, 500, *other), pattern(8));
  receive(to_srq(Opcode::RcSendOnly, 501, *srq_), pattern(8));
  EXPECT_EQ(received(), (Completed{{2, WcStatus::Success}, {1, WcStatus::Success}}));
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].opcode(), xrc(Opcode::RcAck));
  EXPECT_EQ(sent[0].psn(), 501u);
}

TEST_F(XrcTest, EmptySrqCausesAnRnrNak) {
  connect_receiver();
  receive(to_srq(Opcode::RcSendOnly, 500, *srq_), pattern(8));
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.aeth.kind, AckKind::RnrNak);
  ASSERT_TRUE(post_to(*srq_, 1).ok());
  receive(to_srq(Opcode::RcSendOnly, 500, *srq_), pattern(8));
  EXPECT_EQ(received(), (Completed{{1, WcStatus::Success}}));
}

TEST_F(XrcTest, RejectsAnUnknownSrqNumber) {
  connect_receiver();
  wire::Packet p = to_srq(Opcode::RcSendOnly, 500, *srq_);
  p.xrc_srqn = (p.xrc_srqn + 1) & 0xFFFFFF;
  expect_refused(p, pattern(8));
  EXPECT_EQ(events(), (Events{EventKind::QpRequestError, EventKind::LastWqeReached}));
}

TEST_F(XrcTest, RejectsAnSrqOfAnotherDomain) {
  connect_receiver();
  SharedReceiveQueue* foreign = make_srq(kDomain + 1);
  ASSERT_TRUE(post_to(*foreign, 1).ok());
  expect_refused(to_srq(Opcode::RcSendOnly, 500, *foreign), pattern(8));
  EXPECT_EQ(foreign->posted(), 1u);
}

TEST_F(XrcTest, RejectsABasicSrq) {
  connect_receiver();
  SharedReceiveQueue* basic = engine_.create_srq({.pd = kPd, .max_wr = 4, .max_sges = 1});
  expect_refused(to_srq(Opcode::RcSendOnly, 500, *basic), pattern(8));
}

TEST_F(XrcTest, RejectsAChangeOfSrqWithinAMessage) {
  connect_receiver();
  SharedReceiveQueue* other = make_srq(kDomain);
  ASSERT_TRUE(post_to(*srq_, 1).ok());
  ASSERT_TRUE(post_to(*other, 2).ok());
  receive(to_srq(Opcode::RcSendFirst, 500, *srq_), pattern(256));
  expect_refused(to_srq(Opcode::RcSendLast, 501, *other), pattern(1));
  EXPECT_EQ(received(), (Completed{{1, WcStatus::RemoteInvalidRequest}}));
  EXPECT_EQ(other->posted(), 1u);
}

TEST_F(XrcTest, DestroyingTheSrqEndsItsMessage) {
  connect_receiver();
  ASSERT_TRUE(post_to(*srq_, 1).ok());
  receive(to_srq(Opcode::RcSendFirst, 500, *srq_), pattern(256));
  const wire::Packet last = to_srq(Opcode::RcSendLast, 501, *srq_);
  engine_.destroy_srq(srq_);
  expect_refused(last, pattern(1));
  EXPECT_EQ(received(), Completed{});
}

TEST_F(XrcTest, ErrorFlushesTheReceiveOfAnIncompleteMessage) {
  connect_receiver();
  ASSERT_TRUE(post_to(*srq_, 1).ok());
  ASSERT_TRUE(post_to(*srq_, 2).ok());
  receive(to_srq(Opcode::RcSendFirst, 500, *srq_), pattern(256));
  to_state(qp(), QpState::Error);
  EXPECT_EQ(received(), (Completed{{1, WcStatus::Flushed}}));
  EXPECT_EQ(events(), Events{EventKind::LastWqeReached});
  EXPECT_EQ(srq_->posted(), 1u);
}

TEST_F(XrcTest, WritesToTheProtectionDomainOfTheSrq) {
  connect_receiver();
  wire::Packet write = to_srq(Opcode::RcWriteOnly, 500, *srq_);
  write.reth.length = 8;
  receive(write, pattern(8));
  EXPECT_EQ(qp().state(), QpState::Rts);
  const Bytes expected = pattern(8);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), memory_.begin()));
  transmit();
  SharedReceiveQueue* elsewhere = make_srq(kDomain, kPd + 1);
  wire::Packet denied = to_srq(Opcode::RcWriteOnly, 501, *elsewhere);
  denied.reth.length = 8;
  expect_refused(denied, pattern(8), NakCode::RemoteAccess);
}

TEST_F(XrcTest, ExecutesReadsAndAtomics) {
  connect_receiver();
  wire::Packet read = to_srq(Opcode::RcReadRequest, 500, *srq_);
  read.reth.length = 300;
  receive(read);
  SharedReceiveQueue* elsewhere = make_srq(kDomain, kPd + 1);
  wire::Packet nothing = to_srq(Opcode::RcWriteOnly, 502, *elsewhere);
  nothing.reth.length = 0;
  receive(nothing);  // must not change the protection domain of the READ
  wire::Packet add = to_srq(Opcode::RcFetchAdd, 503, *srq_);
  add.atomic.swap_or_add = 5;
  receive(add);
  EXPECT_EQ(transmit_opcodes(),
            (std::vector<Opcode>{xrc(Opcode::RcReadResponseFirst), xrc(Opcode::RcReadResponseLast),
                                 xrc(Opcode::RcAtomicAck), xrc(Opcode::RcAck)}));
  EXPECT_EQ(std::to_integer<int>(memory_[0]), 5);
}

TEST_F(XrcTest, RequestsNameTheSrq) {
  connect_sender();
  for (const SendOp op : {SendOp::Send, SendOp::WriteImm, SendOp::Read, SendOp::FetchAdd}) {
    const Sge sge{kIova, op == SendOp::FetchAdd ? 8u : 300u, key_};
    SendRequest r;
    r.op = op;
    r.wr_id = static_cast<uint64_t>(op);
    r.flags = kSignaled;
    r.sges = {&sge, 1};
    r.remote_srqn = 0xABCDE0 + static_cast<uint32_t>(op);
    ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  }
  const auto sent = transmit();
  const std::vector<Opcode> expected{xrc(Opcode::RcSendFirst),   xrc(Opcode::RcSendLast),
                                     xrc(Opcode::RcWriteFirst),  xrc(Opcode::RcWriteLastImm),
                                     xrc(Opcode::RcReadRequest), xrc(Opcode::RcFetchAdd)};
  const std::vector<SendOp> ops{SendOp::Send,     SendOp::Send, SendOp::WriteImm,
                                SendOp::WriteImm, SendOp::Read, SendOp::FetchAdd};
  ASSERT_EQ(sent.size(), expected.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].opcode(), expected[i]);
    EXPECT_EQ(sent[i].packet.xrc_srqn, 0xABCDE0 + static_cast<uint32_t>(ops[i]));
  }
}

TEST_F(XrcTest, ResponsesCompleteRequests) {
  connect_sender();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  receive_ack(100);  // an RC ACK is of the wrong transport
  EXPECT_EQ(counter(CounterId::wrong_transport), 1u);
  EXPECT_EQ(completions(), Completed{});
  wire::Packet ack = request(xrc(Opcode::RcAck), 100);
  ack.aeth = {AckKind::Ack, wire::kUnlimitedCredits, 1};
  receive(ack);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
}

TEST_F(XrcTest, ReceiverDropsRcPackets) {
  connect_receiver();
  ASSERT_TRUE(post_to(*srq_, 1).ok());
  receive(request(Opcode::RcSendOnly, 500), pattern(8));
  EXPECT_EQ(counter(CounterId::wrong_transport), 1u);
  EXPECT_EQ(srq_->posted(), 1u);
}

TEST_F(XrcTest, RejectsPostsAndPacketsForTheMissingHalf) {
  connect_sender();
  EXPECT_EQ(post_receive(1, 8).error().code, EINVAL);
  receive(request(xrc(Opcode::RcSendOnly), 500), pattern(8));
  EXPECT_EQ(counter(CounterId::wrong_transport), 1u);
  connect_receiver();
  EXPECT_EQ(post(SendOp::Send, 1, 8).error().code, EINVAL);
  EXPECT_EQ(post_receive(1, 8).error().code, EINVAL);
  wire::Packet ack = request(xrc(Opcode::RcAck), 100);
  receive(ack);
  EXPECT_EQ(counter(CounterId::stale_responses), 1u);
}

TEST_F(XrcTest, CqOverrunRaisesAnSrqError) {
  connect_receiver();
  for (; srq_cq_.size() < srq_cq_.capacity(); srq_cq_.publish()) *srq_cq_.next() = {};
  ASSERT_TRUE(post_to(*srq_, 1).ok());
  receive(to_srq(Opcode::RcSendOnly, 500, *srq_), pattern(8));
  EXPECT_EQ(qp().state(), QpState::Error);
  const Events seen = events();
  EXPECT_EQ(std::ranges::count(seen, EventKind::CqError), 1);
  EXPECT_EQ(std::ranges::count(seen, EventKind::SrqError), 1);
  EXPECT_EQ(std::ranges::count(seen, EventKind::LastWqeReached), 1);
}

}  // namespace
}  // namespace verbena::core
