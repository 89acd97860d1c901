// Dispatch, deadlines, the ready list, and the congestion window that queue pairs share.
#include "core/engine.h"

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;

TEST_F(EngineTest, CountsPacketsThatItDrops) {
  connect();
  wire::Packet p = request(Opcode::RcSendOnly, 500);
  p.bth.destination = wire::Qpn::of_slot(1, 60000);
  receive(p);
  p.bth.destination = wire::Qpn::of_slot(2, qp().qpn().index());  // another process's slot
  receive(p);
  EXPECT_EQ(counter(CounterId::unknown_qp), 2u);
  p = request(Opcode::RcSendOnly, 500);
  p.bth.pkey = 0x1234;
  receive(p);
  EXPECT_EQ(counter(CounterId::wrong_pkey), 1u);
  p = request(Opcode::RcSendOnly, 500);
  p.bth.version = 1;
  receive(p);
  EXPECT_EQ(counter(CounterId::malformed_packets), 1u);
  std::swap(peer_gid_, our_gid_);
  receive(request(Opcode::RcSendOnly, 500));
  EXPECT_EQ(counter(CounterId::wrong_source), 1u);
  EXPECT_TRUE(transmit().empty());
}

// Late packets of an ended connection reach no queue pair until all numbers were used.
TEST_F(EngineTest, ReusesAQpnOnlyAfterAllOthersWereUsed) {
  QpConfig config;
  config.send_cq = config.receive_cq = &cq_;
  QueuePair* const stays = engine_.create_qp(config).value();
  const wire::Qpn kept = stays->qpn();
  constexpr uint32_t kNumbers = (1u << 16) - 2;
  wire::Qpn first;
  for (uint32_t i = 0; i < kNumbers; ++i) {
    QueuePair* const qp = engine_.create_qp(config).value();
    if (i == 0) first = qp->qpn();
    ASSERT_NE(qp->qpn(), kept);
    ASSERT_GE(qp->qpn().index(), 2u);
    ASSERT_EQ(i == kNumbers - 1, i != 0 && qp->qpn() == first);
    engine_.destroy_qp(qp, now_);
  }
  EXPECT_EQ(engine_.find(kept), stays);
}

TEST_F(EngineTest, SpuriousDeadlinesAreHarmless) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  transmit();
  const Instant deadline = engine_.next_deadline();
  for (int i = 0; i < 10; ++i) {
    now_ = now_ + microseconds(1);
    engine_.on_deadline(now_);
  }
  EXPECT_EQ(engine_.next_deadline(), deadline);
  EXPECT_TRUE(transmit().empty());
}

TEST_F(EngineTest, ReportsTheEarliestDeadline) {
  QueuePair& slow = make_connected({.timeout = 16});
  QueuePair& fast = make_connected({.timeout = 10});
  qp_ = &slow;
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  qp_ = &fast;
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  transmit();
  EXPECT_EQ(engine_.next_deadline(), now_ + nanoseconds(4096) * (1 << 10));
  receive_ack(100);
  EXPECT_EQ(engine_.next_deadline(), now_ + nanoseconds(4096) * (1 << 16));
  engine_.destroy_qp(&slow, now_);
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

TEST_F(EngineTest, DoesNotReuseAQpnSoon) {
  connect();
  const wire::Qpn first = qp().qpn();
  engine_.destroy_qp(qp_, now_);
  for (int i = 0; i < 20; ++i) {
    QueuePair& next = make_connected({});
    EXPECT_NE(next.qpn(), first);
    engine_.destroy_qp(&next, now_);
  }
  EXPECT_EQ(engine_.qp_count(), 0u);
}

TEST_F(EngineTest, RefusesMoreQueuePairsThanConfigured) {
  std::vector<QueuePair*> all;
  QpConfig c;
  c.send_cq = c.receive_cq = &cq_;
  c.max_send_wr = c.max_recv_wr = 1;
  for (;;) {
    auto made = engine_.create_qp(c);
    if (!made.ok()) {
      EXPECT_EQ(made.error().code, ENOMEM);
      break;
    }
    all.push_back(made.value());
  }
  EXPECT_EQ(all.size(), 64u);
  engine_.destroy_qp(all.back(), now_);
  EXPECT_TRUE(engine_.create_qp(c).ok());
}

TEST_F(EngineTest, QueuePairsTakeTurns) {
  QueuePair& x = make_connected({});
  QueuePair& y = make_connected({.sq_psn = 9000});
  for (QueuePair* q : {&x, &y}) {
    qp_ = q;
    ASSERT_TRUE(post(SendOp::Write, 1, 256 * 100).ok());
  }
  const auto sent = transmit(100);
  ASSERT_EQ(sent.size(), 100u);
  const auto of_y = std::ranges::count_if(sent, [](const Sent& s) { return s.psn() >= 9000; });
  EXPECT_GE(of_y, 32);
  EXPECT_LE(of_y, 68);
}

// One queue pair fills the window; the request of another waits until the window has room.
class SharedWindowTest : public EngineTest {
 public:
  SharedWindowTest() {
    busy_ = &make_connected({.mtu = wire::Mtu::k4096});
    waiter_ = &make_connected({.mtu = wire::Mtu::k4096, .sq_psn = 9000});
    qp_ = busy_;
    for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(post(SendOp::Write, i, kRegionBytes).ok());
    busy_sent_ = transmit().size();
    EXPECT_FALSE(busy_->peer()->has_room());
    qp_ = waiter_;
    EXPECT_TRUE(post(SendOp::Send, 77, 8).ok());
    EXPECT_TRUE(transmit().empty());
  }
  bool waiter_sends() {
    const auto sent = transmit();
    return std::ranges::any_of(sent, [](const Sent& s) { return s.psn() == 9000; });
  }
  QueuePair* busy_;
  QueuePair* waiter_;
  size_t busy_sent_ = 0;
};

TEST_F(SharedWindowTest, QueuePairsShareOneWindow) {
  EXPECT_EQ(busy_->peer(), waiter_->peer());
  EXPECT_LE(busy_sent_ * (4096 + PeerPath::kPacketOverhead), busy_->peer()->window() + 8192);
}

TEST_F(SharedWindowTest, HasADeadlineWhileTheWindowIsFull) {
  qp_ = busy_;
  EXPECT_NE(engine_.next_deadline(), kNever);
}

// The ACK covers more than the first queue pair in the waiting list sends in its turn.
TEST_F(SharedWindowTest, AnAckLetsTheOtherSend) {
  qp_ = busy_;
  receive_ack(118);
  EXPECT_TRUE(waiter_sends());
}

// Two ACKs of eight packets each free enough of the window for one turn.
TEST_F(SharedWindowTest, ReservesFreeWindowOnce) {
  for (uint32_t i = 0; i < 6; ++i) {
    qp_ = &make_connected({.mtu = wire::Mtu::k4096, .sq_psn = 20000 + 1000 * i});
    ASSERT_TRUE(post(SendOp::Write, 1, kRegionBytes).ok());
  }
  const PeerPath& peer = *busy_->peer();
  const size_t waiting = peer.waiting.size();
  qp_ = busy_;
  receive_ack(107);
  EXPECT_EQ(peer.waiting.size(), waiting - 1);
  receive_ack(115);
  EXPECT_EQ(peer.waiting.size(), waiting - 1);
  receive_ack(123);
  EXPECT_EQ(peer.waiting.size(), waiting - 2);
  EXPECT_FALSE(transmit().empty());
  EXPECT_FALSE(peer.has_room());
  EXPECT_EQ(peer.reserved_bytes, 0u);
}

TEST_F(SharedWindowTest, ReservesTheBytesOfOneTurn) {
  qp_ = busy_;
  receive_ack(107);
  EXPECT_EQ(busy_->peer()->reserved_bytes, 16 * (4096 + PeerPath::kPacketOverhead));
}

// A queue pair with an ACK to send is ready first and also sends its new request. It uses up the
// window that the woken queue pair had waited for.
TEST_F(SharedWindowTest, AQueuePairWokenWithoutEffectStaysFirst) {
  QueuePair& quick = make_connected({.mtu = wire::Mtu::k4096, .sq_psn = 20000});
  PeerPath& peer = *busy_->peer();
  ASSERT_EQ(peer.waiting.in_order(), (std::vector{busy_, waiter_}));
  qp_ = &quick;
  receive(request(wire::Opcode::RcWriteOnly, 500));
  ASSERT_TRUE(post(SendOp::Write, 1, kRegionBytes).ok());
  qp_ = busy_;
  receive_ack(107);
  ASSERT_EQ(peer.waiting.in_order(), std::vector{waiter_});
  EXPECT_GT(transmit().size(), 8u);
  EXPECT_FALSE(peer.has_room());
  EXPECT_EQ(peer.waiting.in_order(), (std::vector{busy_, waiter_, &quick}));
}

// One packet fills the window. After the first ACK the path is paced, too.
class PacedAfterAckControl final : public CongestionControl {
 public:
  PacedAfterAckControl() : CongestionControl(1) {}
  void on_acked(const AckEvent&) override { pacing_rate_ = 1'000'000; }
  void on_lost(const LossEvent&) override {}
  void on_timed_out(Instant) override {}
  void on_cnp(Instant) override {}
  void on_round_trip(Duration, Instant) override {}
};
constexpr CongestionAlgorithm kPacedAfterAck{"paced after an ACK", "",
                                             []() -> std::unique_ptr<CongestionControl> {
                                               return std::make_unique<PacedAfterAckControl>();
                                             }};

class PacedWindowTest : public EngineTest {
 public:
  PacedWindowTest() : EngineTest(true, true, kPacedAfterAck) {}
};

// The queue pair whose packet shut the path has nothing more to send, so the deadline that reopens
// the path is that of the next one. It began to wait when the path was not paced.
TEST_F(PacedWindowTest, AQueuePairSendsWhenAPathReopensThatAnotherShut) {
  std::vector<QueuePair*> all;
  for (uint32_t i = 0; i < 3; ++i) {
    all.push_back(&make_connected({.sq_psn = 1000 * (i + 1)}));
    qp_ = all.back();
    ASSERT_TRUE(post(SendOp::Write, i, 8).ok());
    ASSERT_EQ(transmit().size(), i == 0 ? 1u : 0u);
  }
  qp_ = all[0];
  receive_ack(1000);
  ASSERT_EQ(transmit().size(), 1u);
  ASSERT_TRUE(all[1]->peer()->is_paced());
  qp_ = all[1];
  receive_ack(2000);
  ASSERT_TRUE(transmit().empty());
  ASSERT_TRUE(next_deadline());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].psn(), 3000u);
}

TEST_F(SharedWindowTest, DestroyReturnsReservedWindowToTheOthers) {
  qp_ = &make_connected({.mtu = wire::Mtu::k4096, .sq_psn = 20000});
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  qp_ = busy_;
  receive_ack(107);
  ASSERT_GT(waiter_->peer()->reserved_bytes, 0u);
  engine_.destroy_qp(busy_, now_);
  EXPECT_TRUE(waiter_sends());
  EXPECT_EQ(waiter_->peer()->reserved_bytes, 0u);
}

// The READ responses of many queue pairs together once exceeded the window by up to 64 KiB, and a
// receive buffer of the default size dropped some of them.
TEST_F(EngineTest, ReadsOfAllQueuePairsRequestAtMostOneWindow) {
  std::vector<QueuePair*> qps;
  for (uint32_t i = 0; i < 6; ++i) {
    qps.push_back(&make_connected({.mtu = wire::Mtu::k4096, .sq_psn = 1000 * (i + 1)}));
  }
  PeerPath& peer = *qps[0]->peer();
  for (int i = 0; i < 100; ++i) peer.on_acked(PeerPath::kMaxResponseBytes, false, Instant{});
  ASSERT_EQ(peer.window(), PeerPath::kMaxResponseBytes);
  for (uint32_t i = 0; i < 6; ++i) {
    qp_ = qps[i];
    ASSERT_TRUE(post(SendOp::Read, i, 64 * 1024).ok());
  }
  EXPECT_EQ(transmit().size(), 4u);
  EXPECT_LE(peer.in_flight(), peer.window());
  EXPECT_TRUE(peer.has_room());
  const auto respond = [&](QueuePair& qp, uint32_t psn, uint32_t first, uint32_t end) {
    qp_ = &qp;
    for (uint32_t i = first; i < end; ++i) {
      const auto opcode = i == 0    ? wire::Opcode::RcReadResponseFirst
                          : i == 15 ? wire::Opcode::RcReadResponseLast
                                    : wire::Opcode::RcReadResponseMiddle;
      receive(request(opcode, psn + i), pattern(4096));
    }
  };
  respond(*qps[0], 1000, 0, 2);
  EXPECT_TRUE(transmit().empty());
  respond(*qps[1], 2000, 0, 14);
  EXPECT_EQ(transmit().size(), 1u);
  EXPECT_LE(peer.in_flight(), peer.window());
  respond(*qps[1], 2000, 14, 16);
  respond(*qps[0], 1000, 2, 16);
  EXPECT_EQ(transmit().size(), 1u);
}

TEST_F(EngineTest, ADeniedRequestFailsAlthoughTheWindowIsFull) {
  QueuePair& busy = make_connected({.mtu = wire::Mtu::k4096});
  QueuePair& denied = make_connected({.mtu = wire::Mtu::k4096, .sq_psn = 9000});
  qp_ = &denied;
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  const Sge bad{kIova, 8, key_ ^ 1};
  SendRequest r;
  r.wr_id = 2;
  r.sges = {&bad, 1};
  ASSERT_TRUE(engine_.post_send(denied, r, now_).ok());
  ASSERT_EQ(transmit().size(), 1u);
  qp_ = &busy;
  while (busy.peer()->has_room()) {  // and no request of this queue pair waits
    const uint32_t packets = busy.peer()->room() > 40 * 1024 ? 8 : 1;
    ASSERT_TRUE(post(SendOp::Write, 10, packets * 4096).ok());
    transmit();
  }
  ASSERT_TRUE(busy.peer()->waiting.empty());
  qp_ = &denied;
  receive_ack(9000);
  ASSERT_FALSE(busy.peer()->has_room());
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::LocalProtection}}));
}

// While other queue pairs use the window, the packets sent before need an ACK, or the window stays
// full permanently.
TEST_F(EngineTest, LastPacketOfATurnRequestsAnAck) {
  QueuePair& x = make_connected({.mtu = wire::Mtu::k4096});
  QueuePair& y = make_connected({.mtu = wire::Mtu::k4096, .sq_psn = 9000});
  qp_ = &x;
  ASSERT_TRUE(post(SendOp::Write, 1, 3 * 4096).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, kRegionBytes).ok());
  qp_ = &y;
  ASSERT_TRUE(post(SendOp::Write, 3, kRegionBytes).ok());
  const auto sent = transmit();
  const auto first_of_y = std::ranges::find_if(sent, [](const Sent& s) { return s.psn() >= 9000; });
  ASSERT_NE(first_of_y, sent.begin());
  ASSERT_NE(first_of_y, sent.end());
  const Sent& last_of_turn = *std::prev(first_of_y);
  EXPECT_EQ(last_of_turn.psn(), 115u);
  EXPECT_TRUE(last_of_turn.packet.bth.ack_request);
}

TEST_F(EngineTest, TheOnlyActiveQueuePairRequestsAnAckWithEveryEighthPacket) {
  qp_ = &make_connected({.mtu = wire::Mtu::k4096});
  ASSERT_TRUE(post(SendOp::Write, 1, 3 * 4096).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, kRegionBytes).ok());
  const auto sent = transmit();
  ASSERT_GT(sent.size(), 10u);
  EXPECT_FALSE(sent[7].packet.bth.ack_request);
  EXPECT_TRUE(sent[10].packet.bth.ack_request);
}

// A queue pair that always has more to send must not use up the whole window.
TEST_F(SharedWindowTest, ABusyQueuePairDoesNotStarveAnother) {
  qp_ = busy_;
  bool went = false;
  for (uint32_t psn = 107; psn < 107 + 3 * 8 && !went; psn += 8) {
    receive_ack(psn);
    went = waiter_sends();
  }
  EXPECT_TRUE(went);
}

// A queue pair that always has ACKs to send must not do so either.
TEST_F(SharedWindowTest, AQueuePairBusyInBothDirectionsDoesNotStarveAnother) {
  qp_ = busy_;
  bool went = false;
  for (uint32_t i = 0; i < 3 && !went; ++i) {
    receive(request(Opcode::RcWriteOnly, 500 + i));
    receive_ack(107 + i * 8);
    went = waiter_sends();
  }
  EXPECT_TRUE(went);
}

TEST_F(SharedWindowTest, DestroyLetsTheOtherSend) {
  engine_.destroy_qp(busy_, now_);
  EXPECT_TRUE(waiter_sends());
}

TEST_F(SharedWindowTest, ResetLetsTheOtherSend) {
  to_state(*busy_, QpState::Reset);
  EXPECT_TRUE(waiter_sends());
}

TEST_F(SharedWindowTest, ErrorLetsTheOtherSend) {
  to_state(*busy_, QpState::Error);
  EXPECT_TRUE(waiter_sends());
}

TEST_F(SharedWindowTest, WaiterMayBeDestroyed) {
  engine_.destroy_qp(waiter_, now_);
  qp_ = busy_;
  receive_ack(110);
  EXPECT_FALSE(transmit().empty());
}

// SQD permits a new address: packets in flight no longer count against the old peer.
TEST_F(SharedWindowTest, ANewAddressMovesTheBytesInFlight) {
  PeerPath* old = busy_->peer();
  to_state(*busy_, QpState::Sqd);
  QpAttributes attr = busy_->attributes();
  attr.address.destination.bytes[15] = std::byte{99};
  engine_.modify_qp(*busy_, attr, qp_attr::kAddressVector, now_);
  EXPECT_NE(busy_->peer(), old);
  EXPECT_TRUE(old->is_idle());
  EXPECT_GT(busy_->peer()->in_flight(), 0u);
  EXPECT_TRUE(waiter_sends());
  engine_.destroy_qp(busy_, now_);
}

TEST_F(EngineTest, FullCompletionQueueFailsTheQueuePairOnce) {
  auto ring = CompletionQueue::make_ring(1);
  ASSERT_TRUE(cq_.resize(1, ring));
  connect();
  for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(post(SendOp::Send, i, 8).ok());
  transmit();
  receive_ack(103);
  EXPECT_EQ(qp().state(), QpState::Error);
  EXPECT_EQ(events(), (std::vector{EventKind::CqError, EventKind::QpFatal}));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
}

TEST_F(EngineTest, SqdFinishesTheStartedMessageAndReportsTheDrain) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 256 * 4).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  EXPECT_EQ(transmit(2).size(), 2u);
  QpAttributes attr;
  attr.state = QpState::Sqd;
  attr.sqd_notify = true;
  engine_.modify_qp(qp(), attr, qp_attr::kState | qp_attr::kEnSqdAsyncNotify, now_);
  receive_ack(101);
  EXPECT_TRUE(events().empty());  // half a message is out
  EXPECT_EQ(transmit().size(), 2u);
  receive_ack(103);
  EXPECT_EQ(events(), std::vector<EventKind>{EventKind::SqDrained});
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  EXPECT_TRUE(transmit().empty());
  to_state(qp(), QpState::Rts);
  EXPECT_EQ(transmit().size(), 1u);
}

TEST_F(EngineTest, RejectsPostsInReset) {
  QpConfig c;
  c.send_cq = c.receive_cq = &cq_;
  c.max_send_wr = c.max_recv_wr = 1;
  qp_ = engine_.create_qp(c).value();
  SendRequest s;
  EXPECT_EQ(engine_.post_send(qp(), s, now_).error().code, EINVAL);
  EXPECT_EQ(engine_.post_receive(qp(), {}, now_).error().code, EINVAL);
}

// The peer's ACK ends the GSO batch of its reply.
TEST_F(EngineTest, HandlesTheAckBeforeTheRequestOfTheSameBatch) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  ASSERT_TRUE(post_receive(2, 8).ok());
  transmit();
  wire::Packet ack = request(wire::Opcode::RcAck, 100);
  ack.aeth = {wire::AckKind::Ack, wire::kUnlimitedCredits, 0};
  receive_together({request(wire::Opcode::RcSendOnly, 500), ack});
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
}

// The ACKs of several queue pairs leave before the requests of each.
TEST_F(EngineTest, SendsTheAckBehindTheRequestOnlyIfOneQueuePairIsActive) {
  using enum wire::Opcode;
  QueuePair& x = make_connected({});
  QueuePair& y = make_connected({.sq_psn = 9000});
  const auto receive_and_reply = [&](QueuePair& qp, uint32_t psn) {
    qp_ = &qp;
    receive(request(RcWriteOnly, psn));
    ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  };
  receive_and_reply(x, 500);
  receive_and_reply(y, 500);
  EXPECT_EQ(transmit_opcodes(), (std::vector{RcAck, RcSendOnly, RcAck, RcSendOnly}));
  receive_and_reply(x, 501);
  EXPECT_EQ(transmit_opcodes(), (std::vector{RcSendOnly, RcAck}));
}

// The last packets are longer than the middle ones because of their AETH. Together they form one
// GSO batch and do not each end another.
TEST_F(EngineTest, LastPacketsOfSeveralReadResponsesShareABatch) {
  using enum wire::Opcode;
  QueuePair& x = make_connected({});
  QueuePair& y = make_connected({.sq_psn = 9000});
  const auto read = [&](QueuePair& qp, uint32_t psn, uint32_t length) {
    qp_ = &qp;
    wire::Packet p = request(RcReadRequest, psn);
    p.reth = {kIova, key_, length};
    receive(p);
  };
  constexpr auto kFirst = RcReadResponseFirst, kMiddle = RcReadResponseMiddle,
                 kLast = RcReadResponseLast;
  read(x, 500, 1024);
  read(y, 500, 1024);
  EXPECT_EQ(transmit_opcodes(),
            (std::vector{kFirst, kMiddle, kMiddle, kFirst, kMiddle, kMiddle, kLast, kLast}));
  read(x, 504, 1024);  // only one queue pair
  EXPECT_EQ(transmit_opcodes(), (std::vector{kFirst, kMiddle, kMiddle, kLast}));
  read(x, 508, 512);  // of two sizes
  read(y, 504, 256);
  EXPECT_EQ(transmit_opcodes(), (std::vector{kFirst, kLast, RcReadResponseOnly}));
}

TEST_F(EngineTest, DeliversTheRequestBeforeANakOfTheSameBatch) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  ASSERT_TRUE(post_receive(2, 8).ok());
  transmit();
  wire::Packet nak = request(wire::Opcode::RcAck, 100);
  nak.aeth = {wire::AckKind::Nak, static_cast<uint8_t>(wire::NakCode::RemoteAccess), 0};
  receive_together({request(wire::Opcode::RcSendOnly, 500), nak});
  EXPECT_EQ(completions(), (Completed{{2, WcStatus::Success}, {1, WcStatus::RemoteAccess}}));
}

TEST_F(EngineTest, WorkPostedInErrorIsFlushed) {
  connect();
  to_state(qp(), QpState::Error);
  ASSERT_TRUE(post(SendOp::Send, 1, 8, 0).ok());
  ASSERT_TRUE(post_receive(2, 8).ok());
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Flushed}, {2, WcStatus::Flushed}}));
}

TEST_F(EngineTest, ErrorFlushesBothQueuesInOrder) {
  connect();
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(post(SendOp::Send, i, 8, 0).ok());
  for (uint64_t i = 11; i <= 13; ++i) ASSERT_TRUE(post_receive(i, 8).ok());
  transmit();
  to_state(qp(), QpState::Error);
  Completed expected;
  for (const uint64_t i : {1, 2, 3, 11, 12, 13}) expected.emplace_back(i, WcStatus::Flushed);
  EXPECT_EQ(completions(), expected);
  EXPECT_TRUE(qp().peer()->is_idle());
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

TEST_F(EngineTest, EnginesStartAtDifferentQpns) {
  Engine other({.slot = 1, .secret = 43});
  QpConfig config{.pd = kPd,
                  .send_cq = &cq_,
                  .receive_cq = &cq_,
                  .max_send_wr = 1,
                  .max_recv_wr = 1,
                  .max_send_sge = 1,
                  .max_recv_sge = 1};
  auto a = engine_.create_qp(config);
  auto b = other.create_qp(config);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a.value()->qpn(), b.value()->qpn());
}

}  // namespace
}  // namespace verbena::core
