// The responder keeps what follows a gap, for a peer that wants it, and is as ever to all others.
#include "core/reorder_buffer.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::NakCode;
using wire::Opcode;
using Done = std::vector<std::pair<uint64_t, WcStatus>>;
using Psns = std::vector<uint32_t>;

class ResponderSelectiveTest : public EngineTest {
 public:
  explicit ResponderSelectiveTest(bool selective_repeat = true) : EngineTest(selective_repeat) {}

 protected:
  wire::Packet marked(Opcode opcode, uint32_t psn) const {
    wire::Packet p = request(opcode, psn);
    p.bth.mark = peer_flags().sack;
    return p;
  }
  ExtensionFlags peer_flags_of_a_new_pair() {
    connect();
    const ExtensionFlags marks = peer_flags();
    engine_.destroy_qp(qp_, now_);
    return marks;
  }
  void receive_send(uint32_t psn, uint8_t seed) {
    receive(marked(Opcode::RcSendOnly, psn), pattern(64, seed));
  }
  // The next packet, which lists what is there behind a gap.
  struct List {
    uint32_t missing = 0;
    Psns held;
  };
  List transmit_list() {
    const auto sent = transmit();
    EXPECT_EQ(sent.size(), 1u);
    if (sent.size() != 1) return {};
    const wire::Packet& p = sent[0].packet;
    EXPECT_EQ(sent[0].opcode(), Opcode::RcAck);
    EXPECT_EQ(p.aeth.kind, AckKind::Nak);
    EXPECT_EQ(p.aeth.value, static_cast<uint8_t>(NakCode::SequenceError));
    EXPECT_EQ(p.bth.mark, own_flags().sack_capable);
    List list{p.bth.psn.value(), {}};
    for (uint32_t bit = 0; bit < p.payload.size() * 8; ++bit) {
      if ((p.payload[bit / 8] & std::byte(1u << bit % 8)) != std::byte{0}) {
        list.held.push_back((p.bth.psn + 1 + bit).value());
      }
    }
    return list;
  }
  std::vector<uint64_t> received() {
    std::vector<uint64_t> ids;
    for (const auto& [id, status] : completions()) {
      EXPECT_EQ(status, WcStatus::Success);
      ids.push_back(id);
    }
    return ids;
  }
};

TEST_F(ResponderSelectiveTest, TakesInOrderWhatCameOutOfOrder) {
  connect();
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(post_receive(i, 64, i * 64).ok());
  receive_send(500, 0);
  EXPECT_EQ(transmit().size(), 1u);
  for (const uint32_t psn : {503u, 502u, 504u}) receive_send(psn, static_cast<uint8_t>(psn - 500));
  EXPECT_EQ(received(), std::vector<uint64_t>{0});
  const List list = transmit_list();
  EXPECT_EQ(list.missing, 501u);
  EXPECT_EQ(list.held, (Psns{502, 503, 504}));
  receive_send(501, 1);
  EXPECT_EQ(received(), (std::vector<uint64_t>{1, 2, 3, 4}));
  for (uint8_t i = 0; i < 5; ++i) {
    const Bytes expected = pattern(64, i);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), memory_.begin() + i * 64));
  }
  const auto ack = transmit();
  ASSERT_EQ(ack.size(), 1u);
  EXPECT_EQ(ack[0].psn(), 504u);
  EXPECT_EQ(ack[0].packet.aeth.kind, AckKind::Ack);
  EXPECT_TRUE(ack[0].packet.payload.empty());
  EXPECT_EQ(engine_.state().held.in_use(), 0u);
}

TEST_F(ResponderSelectiveTest, EachNewGapIsTold) {
  connect();
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  receive_send(501, 1);
  EXPECT_EQ(transmit_list().held, Psns{501});
  receive_send(503, 1);
  EXPECT_EQ(transmit_list().held, (Psns{501, 503}));
  receive_send(500, 1);
  const List list = transmit_list();
  EXPECT_EQ(list.missing, 502u);
  EXPECT_EQ(list.held, Psns{503});
}

TEST_F(ResponderSelectiveTest, CopiesAreTakenOnce) {
  connect();
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  for (int i = 0; i < 3; ++i) receive_send(501, 1);
  EXPECT_EQ(engine_.state().held.in_use(), 1u);
  receive_send(500, 1);
  for (int i = 0; i < 3; ++i) receive_send(501, 1);
  EXPECT_EQ(received().size(), 2u);
  EXPECT_EQ(counter(CounterId::duplicate_requests), 3u);
}

TEST_F(ResponderSelectiveTest, AtomicsBehindAGapAreExecutedOnceAndInTurn) {
  connect();
  wire::Packet add = marked(Opcode::RcFetchAdd, 501);
  add.atomic.swap_or_add = 5;
  receive(add);
  receive(add);
  uint64_t word = 0;
  std::memcpy(&word, memory_.data(), 8);
  EXPECT_EQ(word, 0u);
  transmit();
  wire::Packet write = marked(Opcode::RcWriteOnly, 500);
  write.reth.length = 8;
  const uint64_t value = 100;
  receive(write, std::as_bytes(std::span(&value, 1)));
  receive(add);
  std::memcpy(&word, memory_.data(), 8);
  EXPECT_EQ(word, 105u);
  const auto answers = transmit();
  ASSERT_GE(answers.size(), 1u);
  EXPECT_EQ(answers[0].opcode(), Opcode::RcAtomicAck);
  EXPECT_EQ(answers[0].packet.original, 100u);
}

// The last bytes of a message become visible last: nothing of what is behind a gap is visible.
TEST_F(ResponderSelectiveTest, NothingBehindAGapIsVisible) {
  connect();
  wire::Packet last = marked(Opcode::RcWriteLast, 501);
  receive(last, pattern(100));
  EXPECT_TRUE(
      std::all_of(memory_.begin(), memory_.end(), [](std::byte b) { return b == std::byte{0}; }));
  wire::Packet first = marked(Opcode::RcWriteFirst, 500);
  first.reth.length = 356;
  receive(first, pattern(256, 9));
  EXPECT_NE(memory_[355], std::byte{0});
}

// Without a receive the rest has to come again: an RNR NAK says "from here on".
TEST_F(ResponderSelectiveTest, RnrForgetsWhatWasKept) {
  connect();
  ASSERT_TRUE(post_receive(1, 64).ok());
  for (const uint32_t psn : {501u, 502u, 503u}) receive_send(psn, 1);
  transmit();
  receive_send(500, 1);  // takes the only receive; 501 finds none
  EXPECT_EQ(received(), std::vector<uint64_t>{1});
  const auto nak = transmit();
  ASSERT_EQ(nak.size(), 1u);
  EXPECT_EQ(nak[0].packet.aeth.kind, AckKind::RnrNak);
  EXPECT_EQ(nak[0].psn(), 501u);
  EXPECT_EQ(engine_.state().held.in_use(), 0u);
  for (uint64_t i = 2; i < 5; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  for (const uint32_t psn : {501u, 502u, 503u}) receive_send(psn, 1);
  EXPECT_EQ(received(), (std::vector<uint64_t>{2, 3, 4}));
}

TEST_F(ResponderSelectiveTest, ARefusedRequestBehindAGapFailsInTurn) {
  connect();
  wire::Packet bad = marked(Opcode::RcWriteOnly, 501);
  bad.reth = {kIova, key_ ^ 1, 8};
  receive(bad, pattern(8));
  receive_send(502, 1);
  EXPECT_EQ(qp().state(), QpState::Rts);
  transmit();
  wire::Packet good = marked(Opcode::RcWriteOnly, 500);
  good.reth.length = 8;
  receive(good, pattern(8));
  EXPECT_EQ(qp().state(), QpState::Error);
  EXPECT_EQ(engine_.state().held.in_use(), 0u);
  const auto nak = transmit();
  ASSERT_EQ(nak.size(), 1u);
  EXPECT_EQ(nak[0].psn(), 501u);
  EXPECT_EQ(nak[0].packet.aeth.value, static_cast<uint8_t>(NakCode::RemoteAccess));
}

TEST_F(ResponderSelectiveTest, WhatIsKeptGoesWithTheQueuePair) {
  for (const QpState end : {QpState::Reset, QpState::Error}) {
    connect();
    receive_send(505, 1);
    EXPECT_EQ(engine_.state().held.in_use(), 1u);
    to_state(qp(), end);
    EXPECT_EQ(engine_.state().held.in_use(), 0u);
  }
  connect();
  receive_send(505, 1);
  engine_.destroy_qp(qp_, now_);
  EXPECT_EQ(engine_.state().held.in_use(), 0u);
}

TEST_F(ResponderSelectiveTest, FarAheadIsNotKept) {
  connect();
  receive_send(500 + ReorderBuffer::kReach - 1, 1);
  EXPECT_EQ(engine_.state().held.in_use(), 1u);
  EXPECT_EQ(transmit_list().held, Psns{500 + ReorderBuffer::kReach - 1});
  receive_send(500 + ReorderBuffer::kReach, 1);
  receive_send(500 + (1 << 22), 1);
  EXPECT_EQ(engine_.state().held.in_use(), 1u);
  EXPECT_EQ(transmit_list().held.size(), 1u);
}

TEST_F(ResponderSelectiveTest, MemoryHasALimitPerQueuePairAndInAll) {
  size_t expected = 0;
  while (expected < PacketPool::kMostInUse) {
    connect();
    for (uint32_t ahead = 1; ahead < ReorderBuffer::kReach; ++ahead) receive_send(500 + ahead, 1);
    // The first few may hold much; from half of all on everybody holds little.
    const bool plenty = expected < PacketPool::kMostInUse / 2;
    expected += plenty ? ReorderBuffer::kMostHeld : ReorderBuffer::kMostHeldOfLittle;
    ASSERT_EQ(engine_.state().held.in_use(), expected);
  }
  // Who got nothing is served as a plain peer is: a NAK, once, and all of it again.
  transmit();
  connect();
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  for (const uint32_t psn : {501u, 502u}) receive_send(psn, 1);
  const auto nak = transmit();
  ASSERT_EQ(nak.size(), 1u);
  EXPECT_TRUE(nak[0].packet.payload.empty());
  for (const uint32_t psn : {500u, 501u, 502u}) receive_send(psn, 1);
  EXPECT_EQ(received().size(), 3u);
}

// With one loss after the other there is always something behind a gap.
TEST(ReorderBuffer, DoesNotGrowWhileItIsNeverEmpty) {
  PacketPool pool;
  ReorderBuffer buffer(pool);
  wire::Packet p;
  const wire::Psn missing(0);
  for (uint32_t i = 1; i < 1000; ++i) {
    p.bth.psn = missing + i;
    ASSERT_TRUE(buffer.put(missing + (i - 1), p));
    if (i < 10) continue;
    auto first = buffer.take_first();
    EXPECT_EQ(first->packet.bth.psn, missing + (i - 9));
    buffer.release(std::move(first));
    EXPECT_EQ(buffer.size(), 9u);
    EXPECT_LE(buffer.slots(), 20u);
  }
}

// Parts of a READ's answer may be asked for in quick succession: all of them are given.
TEST_F(ResponderSelectiveTest, TwoPartsOfAnAnswerAtOnce) {
  connect();
  wire::Packet read = marked(Opcode::RcReadRequest, 500);
  read.reth.length = 256 * 8;
  receive(read);
  EXPECT_EQ(transmit().size(), 8u);
  for (const uint32_t part : {2u, 6u}) {
    wire::Packet again = marked(Opcode::RcReadRequest, 500 + part);
    again.reth = {kIova + part * 256, key_, 256};
    receive(again);
  }
  Psns got;
  for (const Sent& s : transmit()) {
    got.push_back(s.psn());
    EXPECT_EQ(s.packet.bth.mark, own_flags().sack_capable);
  }
  EXPECT_EQ(got, (Psns{502, 503, 504, 505, 506}));
}

// A peer that only reads gets no acknowledgement that could tell it.
TEST_F(ResponderSelectiveTest, TheFirstAnswerToAReadSaysThatWeCan) {
  connect();
  wire::Packet read = request(Opcode::RcReadRequest, 500);
  read.reth = {kIova, key_, 600};
  receive(read);
  std::vector<uint8_t> marks;
  for (const Sent& s : transmit()) marks.push_back(s.packet.bth.mark);
  EXPECT_EQ(marks, (std::vector<uint8_t>{own_flags().sack_capable, 0, 0}));
  receive(request(Opcode::RcWriteOnly, 503));
  const auto ack = transmit();
  ASSERT_EQ(ack.size(), 1u);
  EXPECT_EQ(ack[0].packet.bth.mark, 0);
}

// The kernel may send them from our memory, without copying: the peer asks for no more than its
// window takes. Nobody knows that of a plain one, and what is repeated may be under way twice.
TEST_F(ResponderSelectiveTest, AnswersToAPeerWithAWindowAreInTheWindow) {
  connect();
  const auto in_window = [&](bool wants, uint32_t psn) {
    wire::Packet read =
        wants ? marked(Opcode::RcReadRequest, psn) : request(Opcode::RcReadRequest, psn);
    read.reth = {kIova, key_, 600};
    receive(read);
    std::vector<bool> got;
    for (const Sent& s : transmit()) got.push_back(s.in_window);
    return got;
  };
  EXPECT_EQ(in_window(false, 500), (std::vector{false, false, false}));
  EXPECT_EQ(in_window(true, 503), (std::vector{true, true, true}));
  EXPECT_EQ(in_window(true, 503), (std::vector{false, false, false}));  // again
}

// --- what the peer sends before its turn ---------------------------------------------------------

class EarlyRequestsTest : public ResponderSelectiveTest {
 protected:
  void connect_with_receives() {
    connect();
    for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  }
  void receive_early(uint32_t psn) {
    wire::Packet p = request(Opcode::RcSendOnly, psn);
    p.bth.mark = peer_flags().reordered;
    receive(p, pattern(64));
  }
  void expect_plain_ack(uint32_t psn) {
    const auto sent = transmit();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].psn(), psn);
    EXPECT_EQ(sent[0].packet.aeth.kind, AckKind::Ack);
  }
};

TEST_F(EarlyRequestsTest, AreTakenInOrderAndNotForTheSignOfALoss) {
  connect_with_receives();
  receive_early(501);
  receive_early(503);
  EXPECT_TRUE(transmit().empty());
  receive_send(500, 1);
  expect_plain_ack(501);
  receive_send(502, 1);
  expect_plain_ack(503);
  EXPECT_EQ(received(), (std::vector<uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(counter(CounterId::requests_early), 2u);
  EXPECT_EQ(counter(CounterId::out_of_sequence), 0u);
  EXPECT_EQ(counter(CounterId::naks_sequence_sent), 0u);
  EXPECT_EQ(engine_.state().held.in_use(), 0u);
}

TEST_F(EarlyRequestsTest, DoNotTurnAnAcknowledgementIntoANak) {
  connect_with_receives();
  receive_send(500, 1);
  receive_early(502);
  expect_plain_ack(500);
}

TEST_F(EarlyRequestsTest, AreListedOnceSomethingIsLost) {
  connect_with_receives();
  receive_early(502);
  receive_send(501, 1);  // 500 had left before it
  const List list = transmit_list();
  EXPECT_EQ(list.missing, 500u);
  EXPECT_EQ(list.held, (Psns{501, 502}));
  receive_send(500, 1);
  expect_plain_ack(502);
}

TEST_F(EarlyRequestsTest, AreWaitedForAgainOnceTheGapIsClosed) {
  connect_with_receives();
  receive_early(503);
  receive_send(501, 1);
  EXPECT_EQ(transmit_list().missing, 500u);
  receive_send(500, 1);
  expect_plain_ack(501);  // 502 may be on its way
  receive_send(504, 1);   // now it is not
  EXPECT_EQ(transmit_list().held, (Psns{503, 504}));
}

TEST_F(EarlyRequestsTest, ForWhichThereIsNoRoomAreDroppedWithoutAWord) {
  connect_with_receives();
  receive_early(500 + ReorderBuffer::kReach);
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(engine_.state().held.in_use(), 0u);
  receive_send(500, 1);
  expect_plain_ack(500);
}

// --- towards others: exactly what it always was, but for marks in answers to a loss, and in the
// --- first acknowledgement -----------------------------------------------------------------------

TEST_F(ResponderSelectiveTest, WhoeverDidNotHearWhatWeAreHearsItAgain) {
  connect();
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  std::vector<uint8_t> marks;
  for (const uint32_t psn : {500u, 501u, 500u, 501u}) {  // the first answer was lost, it seems
    receive(request(Opcode::RcSendOnly, psn), pattern(64));
    for (const Sent& s : transmit()) marks.push_back(s.packet.bth.mark);
  }
  const uint8_t can = own_flags().sack_capable;
  EXPECT_EQ(marks, (std::vector<uint8_t>{can, 0, can, can}));
}

// A NIC that sends back what it finds in reserved bits, in whatever packet, is no Verbena.
TEST_F(ResponderSelectiveTest, OurOwnMarksSentBackSayNothing) {
  for (int mark = 1; mark < 128; ++mark) {
    const ExtensionFlags theirs = peer_flags_of_a_new_pair();
    if (mark == theirs.sack || mark == theirs.reordered || mark == theirs.piggyback) continue;
    connect();
    wire::Packet p = request(Opcode::RcSendOnly, 501);
    p.bth.mark = static_cast<uint8_t>(mark);
    receive(p, pattern(64));
    EXPECT_EQ(engine_.state().held.in_use(), 0u) << mark;
    const auto nak = transmit();
    ASSERT_EQ(nak.size(), 1u);
    EXPECT_TRUE(nak[0].packet.payload.empty()) << mark;
    engine_.destroy_qp(qp_, now_);
  }
}

// What a plain peer provokes, in order: ACKs, NAKs, READ data, all of it.
std::vector<Bytes> conversation_with_a_plain_peer(ResponderSelectiveTest& t) {
  std::vector<Bytes> all;
  const auto take = [&] {
    for (Sent& s : t.transmit()) all.push_back(std::move(s.bytes));
  };
  t.connect();
  EXPECT_TRUE(t.post_receive(1, 64).ok());
  t.receive(t.request(Opcode::RcSendOnly, 500), pattern(64));
  take();
  wire::Packet read = t.request(Opcode::RcReadRequest, 501);
  read.reth.length = 700;
  t.receive(read);
  take();
  for (const uint32_t psn : {506u, 507u, 506u}) {  // 504 and 505 are lost
    t.receive(t.request(Opcode::RcSendOnly, psn), pattern(64));
    take();
  }
  t.receive(t.request(Opcode::RcSendOnly, 504), pattern(64));  // no receive
  take();
  t.receive(t.request(Opcode::RcSendOnly, 500), pattern(64));  // a copy
  take();
  read.bth.psn = wire::Psn(502);
  read.reth = {EngineTest::kIova + 256, t.key_, 444};
  t.receive(read);  // resumes
  take();
  EXPECT_TRUE(t.post(SendOp::Write, 9, 600).ok());
  take();
  t.receive_nak(101, AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError));
  take();
  return all;
}

class PlainEngine : public ResponderSelectiveTest {
 public:
  PlainEngine() : ResponderSelectiveTest(false) {}
  void TestBody() override {}
};
class SelectiveEngine : public ResponderSelectiveTest {
 public:
  void TestBody() override {}
};

TEST(SelectiveRepeat, APlainPeerSeesReservedBitsInTheFirstAckAndAnswersToALossAndNothingElse) {
  PlainEngine plain;
  SelectiveEngine selective;
  const auto before = conversation_with_a_plain_peer(plain);
  const auto now = conversation_with_a_plain_peer(selective);
  ASSERT_EQ(before.size(), now.size());
  ASSERT_GE(now.size(), 12u);
  int marked = 0;
  for (size_t i = 0; i < now.size(); ++i) {
    wire::ParseError why{};
    const auto p = wire::Packet::parse(now[i], &why);
    ASSERT_TRUE(p);
    const bool sequence_nak = p->op.verb == wire::Verb::Ack && p->aeth.kind == AckKind::Nak;
    const bool repeated =
        p->op.verb == wire::Verb::ReadResponse && p->bth.psn.value() >= 502 && i > 6;
    const bool copy_answered = i == 6;  // its first answer, the one that was marked, may be lost
    const bool marks = i == 0 || sequence_nak || copy_answered || repeated;
    EXPECT_EQ(p->bth.mark, marks ? selective.own_flags().sack_capable : 0) << i;
    Bytes without = now[i];
    without[8] &= std::byte{0x80};
    EXPECT_EQ(before[i], without) << i;
    marked += p->bth.mark != 0 ? 1 : 0;
  }
  EXPECT_EQ(marked, 5);
}

}  // namespace
}  // namespace verbena::core
