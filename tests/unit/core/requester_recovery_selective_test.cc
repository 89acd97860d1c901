// Selective repeat at the requester, with a peer that buffers packets behind a gap.
#include <set>

#include "core/requester.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::NakCode;
using wire::Opcode;
using Psns = std::vector<uint32_t>;

class SelectiveRepeatTest : public EngineTest {
 public:
  explicit SelectiveRepeatTest(bool selective_repeat = true) : EngineTest(selective_repeat) {}

 protected:
  // A sequence NAK of the peer with a SACK list: the peer buffers the PSNs in `buffered`, which
  // follow `missing`.
  void receive_sack(uint32_t missing, const Psns& buffered) {
    wire::Packet p = request(Opcode::RcAck, missing);
    p.aeth = {AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), 0};
    p.bth.extension_flags = peer_flags().sack_capable;
    Bytes list;
    for (const uint32_t psn : buffered) {
      const auto bit = static_cast<uint32_t>(wire::Psn(psn).distance_from(wire::Psn(missing)) - 1);
      list.resize(std::max<size_t>(list.size(), (bit / 32 + 1) * 4));
      list[bit / 8] |= std::byte(1u << bit % 8);
    }
    receive(p, list);
  }
  Psns transmit_psns() {
    Psns out;
    for (const Sent& s : transmit()) out.push_back(s.psn());
    return out;
  }
  // PSNs 100 to 109 are outstanding.
  void send_ten() {
    for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(post(SendOp::Write, i, 8).ok());
    ASSERT_EQ(transmit().size(), 10u);
  }
  void wait_a_round_trip() { now_ = now_ + milliseconds(2); }
};

TEST_F(SelectiveRepeatTest, RetransmitsOnlyPacketsMissingFromTheSackList) {
  connect();
  send_ten();
  receive_sack(103, {104, 105, 107, 108});
  EXPECT_EQ(completions().size(), 3u);
  EXPECT_EQ(transmit_psns(), (Psns{103, 106}));  // 109 may still be in flight
  EXPECT_EQ(counter(CounterId::retransmitted_packets), 2u);
  receive_ack(109);
  EXPECT_EQ(completions().size(), 7u);
  EXPECT_TRUE(qp().peer()->is_idle());
  EXPECT_EQ(engine_.next_deadline(), kNever);
}

TEST_F(SelectiveRepeatTest, SetsTheSackFlagOnceThePeerIsCapable) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  for (const Sent& s : transmit()) EXPECT_EQ(s.packet.bth.extension_flags, 0);
  wire::Packet nak = request(Opcode::RcAck, 100);
  nak.aeth = {AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), 0};
  nak.bth.extension_flags = peer_flags().sack_capable;
  receive(nak);  // without a SACK list: no packet is buffered yet
  ASSERT_TRUE(post(SendOp::Send, 3, 8).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 3u);
  for (const Sent& s : sent) EXPECT_EQ(s.packet.bth.extension_flags, own_flags().sack);
  // A new connection starts without the flag.
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  for (const Sent& s : transmit()) EXPECT_EQ(s.packet.bth.extension_flags, 0);
}

// Only the peer's own sack_capable flag counts: neither ours, sent back, nor any other.
TEST_F(SelectiveRepeatTest, IgnoresOtherFlags) {
  for (int mark = 1; mark < 128; ++mark) {
    connect();
    if (mark == peer_flags().sack_capable) continue;
    ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
    ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
    transmit();
    wire::Packet nak = request(Opcode::RcAck, 100);
    nak.aeth = {AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), 0};
    nak.bth.extension_flags = static_cast<uint8_t>(mark);
    receive(nak, pattern(4, 0xFF));  // the payload is no SACK list
    const auto sent = transmit();
    ASSERT_EQ(sent.size(), 2u) << mark;
    for (const Sent& s : sent) EXPECT_EQ(s.packet.bth.extension_flags, 0) << mark;
    engine_.destroy_qp(qp_, now_);
  }
}

TEST(ExtensionFlags, AreDistinctAndZeroForEqualQpNumbers) {
  const wire::Qpn low(0x010011), high(0x020007);
  const ExtensionFlags a = flags_sent_by(low, high), b = flags_sent_by(high, low);
  const std::set<int> all{a.sack_capable, a.sack, a.reordered, a.piggyback,
                          b.sack_capable, b.sack, b.reordered, b.piggyback};
  EXPECT_EQ(all.size(), 8u);
  EXPECT_FALSE(all.contains(0));
  EXPECT_LT(*all.rbegin(), 0x80);
  EXPECT_EQ(flags_sent_by(low, low).sack_capable, 0);
  EXPECT_EQ(flags_sent_by(low, low).sack, 0);
  EXPECT_EQ(flags_sent_by(low, low).reordered, 0);
  EXPECT_EQ(flags_sent_by(low, low).piggyback, 0);
}

TEST_F(SelectiveRepeatTest, DuplicateSackListHasNoEffect) {
  connect({.retry_count = 1});
  send_ten();
  for (int i = 0; i < 5; ++i) receive_sack(100, {101, 102});
  EXPECT_EQ(transmit_psns(), Psns{100});
  for (int i = 0; i < 5; ++i) receive_sack(100, {101, 102});
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(SelectiveRepeatTest, LateOlderSackListHasNoEffect) {
  connect();
  send_ten();
  receive_sack(102, {103, 104});
  EXPECT_EQ(transmit_psns(), Psns{102});
  receive_sack(105, {107});
  EXPECT_EQ(transmit_psns(), (Psns{105, 106}));
  receive_sack(102, {103});
  EXPECT_TRUE(transmit().empty());
}

TEST_F(SelectiveRepeatTest, RetransmitsAgainWhenALaterPacketIsReceived) {
  connect();
  send_ten();
  receive_sack(100, {101});
  EXPECT_EQ(transmit_psns(), Psns{100});
  wait_a_round_trip();
  receive_sack(100, {101, 102, 103});  // all sent before that
  EXPECT_TRUE(transmit().empty());
  ASSERT_TRUE(post(SendOp::Write, 10, 8).ok());
  EXPECT_EQ(transmit_psns(), Psns{110});
  receive_sack(100, {101, 102, 103, 104, 105, 106, 107, 108, 109, 110});
  EXPECT_EQ(transmit_psns(), Psns{100});
  receive_ack(110);
  EXPECT_EQ(completions().size(), 11u);
}

// In a network that reorders, each SACK list reports late packets as missing again. That used up
// the retries within one round trip.
TEST_F(SelectiveRepeatTest, RetransmissionIsNotLostWithinARoundTrip) {
  connect({.sq_psn = 99, .retry_count = 2});
  ASSERT_TRUE(post(SendOp::Write, 99, 8).ok());
  transmit();
  now_ = now_ + microseconds(40);
  receive_ack(99);
  send_ten();
  receive_sack(100, {101});
  EXPECT_EQ(transmit_psns(), Psns{100});
  Psns buffered{101};
  for (uint32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(post(SendOp::Write, 10 + i, 8).ok());
    EXPECT_EQ(transmit_psns(), Psns{110 + i});
    buffered.push_back(110 + i);
    now_ = now_ + microseconds(2);
    receive_sack(100, buffered);
    for (const uint32_t psn : transmit_psns()) EXPECT_NE(psn, 100u);
  }
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(SelectiveRepeatTest, RetriesOfTheFirstMissingPacketAreCounted) {
  connect({.retry_count = 2, .depth = 64});
  send_ten();
  Psns buffered;
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(qp().state(), QpState::Rts);
    ASSERT_TRUE(post(SendOp::Write, 10 + i, 8).ok());
    transmit();
    buffered.push_back(110 + i);
    for (uint32_t waits = 0; waits < 1u << 2 * i; ++waits) wait_a_round_trip();  // longer each time
    receive_sack(100, buffered);
    transmit();
  }
  EXPECT_EQ(qp().state(), QpState::Error);
  EXPECT_EQ(completions().front(), (std::pair<uint64_t, WcStatus>{0, WcStatus::RetryExceeded}));
  EXPECT_TRUE(qp().peer()->is_idle());
}

TEST_F(SelectiveRepeatTest, SendsNewRequestsAfterAGap) {
  connect();
  send_ten();
  receive_sack(100, {101, 102, 103, 104, 105, 106, 107, 108, 109});
  for (uint64_t i = 10; i < 14; ++i) ASSERT_TRUE(post(SendOp::Write, i, 8).ok());
  EXPECT_EQ(transmit_psns(), (Psns{100, 110, 111, 112, 113}));
}

TEST_F(SelectiveRepeatTest, TimeoutDiscardsTheSackLists) {
  connect();
  send_ten();
  receive_sack(100, {105, 106, 107, 108, 109});
  EXPECT_EQ(transmit_psns(), (Psns{100, 101, 102, 103, 104}));
  time_out();  // the peer may have discarded them as well
  EXPECT_EQ(transmit().size(), 10u);
}

TEST_F(SelectiveRepeatTest, RnrNakDiscardsTheSackLists) {
  connect();
  for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(post(SendOp::Send, i, 8).ok());
  transmit();
  receive_sack(100, {105, 106});
  EXPECT_EQ(transmit_psns(), (Psns{100, 101, 102, 103, 104}));
  receive_nak(102, AckKind::RnrNak, 5);
  EXPECT_TRUE(transmit().empty());
  now_ = now_ + rnr_delay(5);
  engine_.on_deadline(now_);
  EXPECT_EQ(transmit_psns(), (Psns{102, 103, 104, 105, 106, 107, 108, 109}));
}

TEST_F(SelectiveRepeatTest, HandlesPsnWrap) {
  connect({.sq_psn = 0xFFFFFB});
  for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(post(SendOp::Write, i, 8).ok());
  transmit();
  receive_sack(0xFFFFFC, {0xFFFFFC + 2, 0xFFFFFC + 5, 0xFFFFFC + 6});
  EXPECT_EQ(transmit_psns(), (Psns{0xFFFFFC, 0xFFFFFD, 0xFFFFFF, 0}));
  receive_ack(4);
  EXPECT_EQ(completions().size(), 10u);
}

// A READ after the gap has arrived; its response is not lost, because it is not sent yet.
TEST_F(SelectiveRepeatTest, DoesNotRetransmitAReadThatThePeerBuffers) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Read, 2, 1024).ok());
  ASSERT_TRUE(post(SendOp::Write, 3, 8).ok());
  EXPECT_EQ(transmit_psns(), (Psns{100, 101, 105}));
  receive_sack(100, {101, 105});
  EXPECT_EQ(transmit_psns(), Psns{100});
  receive(request(Opcode::RcReadResponseFirst, 101), pattern(256));
  receive(request(Opcode::RcReadResponseMiddle, 102), pattern(256));
  EXPECT_TRUE(transmit().empty());
  receive(request(Opcode::RcReadResponseMiddle, 103), pattern(256));
  receive(request(Opcode::RcReadResponseLast, 104), pattern(256));
  receive_ack(105);
  EXPECT_EQ(completions().size(), 3u);
}

// READs that the peer buffers fill the window until it responds, and it responds only after the
// missing one arrives: that one must not wait for the window.
TEST_F(SelectiveRepeatTest, RetransmitsTheMissingReadThoughTheWindowIsFull) {
  connect({.mtu = wire::Mtu::k4096, .max_read_atomic = 16});
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(post(SendOp::Read, i, kRegionBytes).ok());
  Psns sent;
  for (Psns more = transmit_psns(); !more.empty(); more = transmit_psns()) {
    sent.insert(sent.end(), more.begin(), more.end());
  }
  ASSERT_GE(sent.size(), 3u);
  EXPECT_FALSE(qp().peer()->has_room());
  receive_sack(sent[0], Psns(sent.begin() + 1, sent.end()));
  EXPECT_EQ(transmit_psns(), Psns{sent[0]});
}

TEST_F(SelectiveRepeatTest, RequestsOnlyMissingReadResponses) {
  connect();
  ASSERT_TRUE(post(SendOp::Read, 1, 256 * 8).ok());
  transmit();
  const Bytes data = pattern(256 * 8);
  const auto respond = [&](uint32_t psn, bool again) {
    wire::Packet p = request(Opcode::RcReadResponseMiddle, psn);
    if (again) p.bth.extension_flags = peer_flags().sack_capable;
    receive(p, std::span(data).subspan((psn - 100) * 256, 256));
  };
  for (const uint32_t psn : {100u, 102u, 103u, 105u}) respond(psn, false);
  // The peer's capability is not known yet: requests everything from the first missing packet on.
  auto again = transmit();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].psn(), 101u);
  EXPECT_EQ(again[0].packet.reth.length, 256u * 7);
  // The response announces the capability: from now on requests only missing packets. 104 is lost
  // again.
  for (const uint32_t psn : {101u, 102u, 103u, 105u, 106u, 107u}) respond(psn, true);
  EXPECT_TRUE(transmit().empty());
  ASSERT_TRUE(next_deadline());
  again = transmit();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].psn(), 104u);
  EXPECT_EQ(again[0].packet.reth.address, 0x7000u + 256 * 4);
  EXPECT_EQ(again[0].packet.reth.length, 256u);
  EXPECT_EQ(again[0].packet.bth.extension_flags, own_flags().sack);
  EXPECT_TRUE(completions().empty());
  respond(104, true);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  EXPECT_TRUE(std::equal(data.begin(), data.end(), memory_.begin()));
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u);
}

TEST_F(SelectiveRepeatTest, ResponsesOutOfOrderCompleteRequestsInOrder) {
  connect();
  ASSERT_TRUE(post(SendOp::FetchAdd, 1, 8, kSignaled, 0).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8, kSignaled, 8).ok());
  ASSERT_TRUE(post(SendOp::Read, 3, 256, kSignaled, 16).ok());
  transmit();
  receive(request(Opcode::RcReadResponseOnly, 102), pattern(256));
  EXPECT_TRUE(completions().empty());
  const auto again = transmit();
  ASSERT_EQ(again.size(), 1u);  // the WRITE was executed, the READ has its response
  EXPECT_EQ(again[0].opcode(), Opcode::RcFetchAdd);
  wire::Packet respond = request(Opcode::RcAtomicAck, 100);
  respond.original = 5;
  receive(respond);
  EXPECT_EQ(completions(),
            (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}, {3, WcStatus::Success}}));
}

TEST_F(SelectiveRepeatTest, BufferedResponsesAreReleasedWithTheQueuePair) {
  for (const QpState end : {QpState::Reset, QpState::Error}) {
    connect();
    ASSERT_TRUE(post(SendOp::Read, 1, 1024).ok());
    transmit();
    receive(request(Opcode::RcReadResponseMiddle, 101), pattern(256));
    EXPECT_EQ(engine_.state().packet_pool.in_use(), 1u);
    to_state(qp(), end);
    EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u);
    EXPECT_EQ(engine_.next_deadline(), kNever);
    EXPECT_TRUE(transmit().empty());
    completions();
  }
}

// The peer rejects a request and stops responding; the response to a READ before it was lost. That
// READ was not rejected: it exhausts its retries.
TEST_F(SelectiveRepeatTest, NakAfterAReadWithoutResponseDoesNotFailTheRead) {
  connect({.retry_count = 1});
  ASSERT_TRUE(post(SendOp::Read, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  transmit();
  receive_nak(101, AckKind::Nak, static_cast<uint8_t>(NakCode::RemoteAccess));
  EXPECT_EQ(qp().state(), QpState::Rts);
  EXPECT_EQ(transmit_psns(), Psns{100});
  while (qp().state() == QpState::Rts) {
    ASSERT_TRUE(next_deadline());
    transmit();
  }
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::RetryExceeded}, {2, WcStatus::Flushed}}));
}

TEST_F(SelectiveRepeatTest, NakAfterAReadFailsItsRequestOnceTheReadCompletes) {
  connect();
  ASSERT_TRUE(post(SendOp::Read, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  transmit();
  const auto reject = [&] {
    receive_nak(101, AckKind::Nak, static_cast<uint8_t>(NakCode::RemoteAccess));
  };
  reject();
  receive(request(Opcode::RcReadResponseOnly, 100), pattern(8));
  reject();
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::RemoteAccess}}));
}

// A retransmission reads the data again: if its lkey is removed, the request fails when it is the
// oldest.
TEST_F(SelectiveRepeatTest, LkeyRemovedBeforeRetransmissionFailsTheRequest) {
  connect();
  alignas(8) std::array<std::byte, 64> other{};
  const uint32_t key =
      engine_.memory().add_region(kPd, other.data(), other.size(), 0x900000, kLocalWrite).value();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  const Sge sge{0x900000, 8, key};
  SendRequest r;
  r.op = SendOp::Write;
  r.wr_id = 2;
  r.flags = kSignaled;
  r.sges = {&sge, 1};
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  ASSERT_TRUE(post(SendOp::Write, 3, 8).ok());
  ASSERT_EQ(transmit().size(), 3u);
  ASSERT_TRUE(engine_.memory().remove_region(key).ok());
  receive_sack(100, {102});
  EXPECT_EQ(transmit_psns(), Psns{100});
  EXPECT_EQ(qp().state(), QpState::Rts);
  receive_sack(101, {102});
  transmit();
  EXPECT_EQ(
      completions(),
      (Completed{{1, WcStatus::Success}, {2, WcStatus::LocalProtection}, {3, WcStatus::Flushed}}));
}

// A forged SACK list may contain anything.
TEST_F(SelectiveRepeatTest, IgnoresPsnsBeyondTheLastSent) {
  connect();
  send_ten();
  receive_sack(100, {101, 110, 111, 500, 1000});
  EXPECT_EQ(transmit_psns(), Psns{100});
  wire::Packet p = request(Opcode::RcAck, 105);
  p.aeth = {AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), 0};
  receive(p, Bytes(4000, std::byte{0xFF}));
  transmit();
  receive_ack(109);
  EXPECT_EQ(completions().size(), 10u);
}

class WithoutSelectiveRepeatTest : public SelectiveRepeatTest {
 protected:
  WithoutSelectiveRepeatTest() : SelectiveRepeatTest(false) {}
};

TEST_F(WithoutSelectiveRepeatTest, IgnoresFlags) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  transmit();
  wire::Packet nak = request(Opcode::RcAck, 100);
  nak.aeth = {AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), 0};
  nak.bth.extension_flags = peer_flags().sack_capable;
  receive(nak);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 2u);
  for (const Sent& s : sent) EXPECT_EQ(s.packet.bth.extension_flags, 0);
}

}  // namespace
}  // namespace verbena::core
