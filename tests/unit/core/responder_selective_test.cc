// Selective repeat: the responder buffers packets behind a gap if the peer asks for it by its
// flags. With every other peer it behaves as a standard responder.
#include "core/reorder_buffer.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::NakCode;
using wire::Opcode;
using Psns = std::vector<uint32_t>;

class ResponderSelectiveTest : public EngineTest {
 public:
  explicit ResponderSelectiveTest(bool selective_repeat = true) : EngineTest(selective_repeat) {}

 protected:
  wire::Packet with_flags(Opcode opcode, uint32_t psn) const {
    wire::Packet p = request(opcode, psn);
    p.bth.extension_flags = peer_flags().sack;
    return p;
  }
  ExtensionFlags peer_flags_of_a_new_pair() {
    connect();
    const ExtensionFlags flags = peer_flags();
    engine_.destroy_qp(qp_, now_);
    return flags;
  }
  void receive_send(uint32_t psn, uint8_t seed) {
    receive(with_flags(Opcode::RcSendOnly, psn), pattern(64, seed));
  }
  // The next packet, a sequence NAK with a SACK list.
  struct SackList {
    uint32_t missing = 0;
    Psns buffered;
  };
  SackList transmit_sack() {
    const auto sent = transmit();
    EXPECT_EQ(sent.size(), 1u);
    if (sent.size() != 1) return {};
    const wire::Packet& p = sent[0].packet;
    EXPECT_EQ(sent[0].opcode(), Opcode::RcAck);
    EXPECT_EQ(p.aeth.kind, AckKind::Nak);
    EXPECT_EQ(p.aeth.value, static_cast<uint8_t>(NakCode::SequenceError));
    EXPECT_EQ(p.bth.extension_flags, own_flags().sack_capable);
    SackList list{p.bth.psn.value(), {}};
    for (uint32_t bit = 0; bit < p.payload.size() * 8; ++bit) {
      if ((p.payload[bit / 8] & std::byte(1u << bit % 8)) != std::byte{0}) {
        list.buffered.push_back((p.bth.psn + 1 + bit).value());
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

TEST_F(ResponderSelectiveTest, ExecutesReorderedRequestsInOrder) {
  connect();
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(post_receive(i, 64, i * 64).ok());
  receive_send(500, 0);
  EXPECT_EQ(transmit().size(), 1u);
  for (const uint32_t psn : {503u, 502u, 504u}) receive_send(psn, static_cast<uint8_t>(psn - 500));
  EXPECT_EQ(received(), std::vector<uint64_t>{0});
  const SackList list = transmit_sack();
  EXPECT_EQ(list.missing, 501u);
  EXPECT_EQ(list.buffered, (Psns{502, 503, 504}));
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
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u);
}

TEST_F(ResponderSelectiveTest, ReportsEachNewGap) {
  connect();
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  receive_send(501, 1);
  EXPECT_EQ(transmit_sack().buffered, Psns{501});
  receive_send(503, 1);
  EXPECT_EQ(transmit_sack().buffered, (Psns{501, 503}));
  receive_send(500, 1);
  const SackList list = transmit_sack();
  EXPECT_EQ(list.missing, 502u);
  EXPECT_EQ(list.buffered, Psns{503});
}

TEST_F(ResponderSelectiveTest, ExecutesDuplicatesOnce) {
  connect();
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  for (int i = 0; i < 3; ++i) receive_send(501, 1);
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 1u);
  receive_send(500, 1);
  for (int i = 0; i < 3; ++i) receive_send(501, 1);
  EXPECT_EQ(received().size(), 2u);
  EXPECT_EQ(counter(CounterId::duplicate_requests), 3u);
}

TEST_F(ResponderSelectiveTest, ExecutesAtomicsBehindAGapOnceAndInOrder) {
  connect();
  wire::Packet add = with_flags(Opcode::RcFetchAdd, 501);
  add.atomic.swap_or_add = 5;
  receive(add);
  receive(add);
  uint64_t word = 0;
  std::memcpy(&word, memory_.data(), 8);
  EXPECT_EQ(word, 0u);
  transmit();
  wire::Packet write = with_flags(Opcode::RcWriteOnly, 500);
  write.reth.length = 8;
  const uint64_t value = 100;
  receive(write, std::as_bytes(std::span(&value, 1)));
  receive(add);
  std::memcpy(&word, memory_.data(), 8);
  EXPECT_EQ(word, 105u);
  const auto responses = transmit();
  ASSERT_GE(responses.size(), 1u);
  EXPECT_EQ(responses[0].opcode(), Opcode::RcAtomicAck);
  EXPECT_EQ(responses[0].packet.original, 100u);
}

// The last bytes of a message become visible last, so packets behind a gap must not be visible.
TEST_F(ResponderSelectiveTest, WritesNothingFromBehindAGap) {
  connect();
  wire::Packet last = with_flags(Opcode::RcWriteLast, 501);
  receive(last, pattern(100));
  EXPECT_TRUE(
      std::all_of(memory_.begin(), memory_.end(), [](std::byte b) { return b == std::byte{0}; }));
  wire::Packet first = with_flags(Opcode::RcWriteFirst, 500);
  first.reth.length = 356;
  receive(first, pattern(256, 9));
  EXPECT_NE(memory_[355], std::byte{0});
}

// An RNR NAK makes the peer retransmit everything from its PSN on.
TEST_F(ResponderSelectiveTest, RnrNakDropsBufferedPackets) {
  connect();
  ASSERT_TRUE(post_receive(1, 64).ok());
  for (const uint32_t psn : {501u, 502u, 503u}) receive_send(psn, 1);
  transmit();
  receive_send(500, 1);  // consumes the only receive; 501 finds none
  EXPECT_EQ(received(), std::vector<uint64_t>{1});
  const auto nak = transmit();
  ASSERT_EQ(nak.size(), 1u);
  EXPECT_EQ(nak[0].packet.aeth.kind, AckKind::RnrNak);
  EXPECT_EQ(nak[0].psn(), 501u);
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u);
  for (uint64_t i = 2; i < 5; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  for (const uint32_t psn : {501u, 502u, 503u}) receive_send(psn, 1);
  EXPECT_EQ(received(), (std::vector<uint64_t>{2, 3, 4}));
}

TEST_F(ResponderSelectiveTest, RejectsAnInvalidRequestBehindAGapInOrder) {
  connect();
  wire::Packet bad = with_flags(Opcode::RcWriteOnly, 501);
  bad.reth = {kIova, key_ ^ 1, 8};
  receive(bad, pattern(8));
  receive_send(502, 1);
  EXPECT_EQ(qp().state(), QpState::Rts);
  transmit();
  wire::Packet good = with_flags(Opcode::RcWriteOnly, 500);
  good.reth.length = 8;
  receive(good, pattern(8));
  EXPECT_EQ(qp().state(), QpState::Error);
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u);
  const auto nak = transmit();
  ASSERT_EQ(nak.size(), 1u);
  EXPECT_EQ(nak[0].psn(), 501u);
  EXPECT_EQ(nak[0].packet.aeth.value, static_cast<uint8_t>(NakCode::RemoteAccess));
}

TEST_F(ResponderSelectiveTest, DropsBufferedPacketsWithTheQueuePair) {
  for (const QpState end : {QpState::Reset, QpState::Error}) {
    connect();
    receive_send(505, 1);
    EXPECT_EQ(engine_.state().packet_pool.in_use(), 1u);
    to_state(qp(), end);
    EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u);
  }
  connect();
  receive_send(505, 1);
  engine_.destroy_qp(qp_, now_);
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u);
}

TEST_F(ResponderSelectiveTest, DoesNotBufferPacketsBeyondItsReach) {
  connect({.mtu = wire::Mtu::k1024});
  receive_send(500 + ReorderBuffer::kReach - 1, 1);
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 1u);
  EXPECT_EQ(transmit_sack().buffered, Psns{500 + ReorderBuffer::kReach - 1});
  receive_send(500 + ReorderBuffer::kReach, 1);
  receive_send(500 + (1 << 22), 1);
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 1u);
  EXPECT_EQ(transmit_sack().buffered.size(), 1u);
}

TEST_F(ResponderSelectiveTest, LimitsBufferedPacketsPerQueuePairAndInTotal) {
  size_t expected = 0;
  while (expected < PacketPool::kMaxInUse) {
    connect({.mtu = wire::Mtu::k1024});
    for (uint32_t ahead = 1; ahead < ReorderBuffer::kReach; ++ahead) receive_send(500 + ahead, 1);
    // The first queue pairs may buffer many packets. Once half of the pool is used, each may buffer
    // few.
    const bool plenty = expected < PacketPool::kMaxInUse / 2;
    expected += plenty ? ReorderBuffer::kMaxBuffered : ReorderBuffer::kMaxBufferedWhenScarce;
    ASSERT_EQ(engine_.state().packet_pool.in_use(), expected);
  }
  // A queue pair without buffers does go-back-N: one NAK, and the peer retransmits everything.
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

// With frequent losses the buffer is never empty.
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

// The peer may request parts of a READ response in quick succession. It gets all of them.
TEST_F(ResponderSelectiveTest, ReplaysAllRequestedPartsOfAReadResponse) {
  connect();
  wire::Packet read = with_flags(Opcode::RcReadRequest, 500);
  read.reth.length = 256 * 8;
  receive(read);
  EXPECT_EQ(transmit().size(), 8u);
  for (const uint32_t part : {2u, 6u}) {
    wire::Packet again = with_flags(Opcode::RcReadRequest, 500 + part);
    again.reth = {kIova + part * 256, key_, 256};
    receive(again);
  }
  Psns got;
  for (const Sent& s : transmit()) {
    got.push_back(s.psn());
    EXPECT_EQ(s.packet.bth.extension_flags, own_flags().sack_capable);
  }
  EXPECT_EQ(got, (Psns{502, 503, 504, 505, 506}));
}

// A peer that only READs gets no ACK, so the READ response announces the capability.
TEST_F(ResponderSelectiveTest, FirstReadResponseAnnouncesTheCapability) {
  connect();
  wire::Packet read = request(Opcode::RcReadRequest, 500);
  read.reth = {kIova, key_, 600};
  receive(read);
  std::vector<uint8_t> flags;
  for (const Sent& s : transmit()) flags.push_back(s.packet.bth.extension_flags);
  EXPECT_EQ(flags, (std::vector<uint8_t>{own_flags().sack_capable, 0, 0}));
  receive(request(Opcode::RcWriteOnly, 503));
  const auto ack = transmit();
  ASSERT_EQ(ack.size(), 1u);
  EXPECT_EQ(ack[0].packet.bth.extension_flags, 0);
}

// READ responses within the peer's window may be sent zero-copy, because the peer requests no more
// than its window. This is unknown for peers without extensions, and a replay may be in flight
// twice.
TEST_F(ResponderSelectiveTest, FlagsReadResponsesWithinThePeersWindow) {
  connect();
  const auto in_window = [&](bool has_sack_flag, uint32_t psn) {
    wire::Packet read = has_sack_flag ? with_flags(Opcode::RcReadRequest, psn)
                                      : request(Opcode::RcReadRequest, psn);
    read.reth = {kIova, key_, 600};
    receive(read);
    std::vector<bool> got;
    for (const Sent& s : transmit()) got.push_back(s.in_window);
    return got;
  };
  EXPECT_EQ(in_window(false, 500), (std::vector{false, false, false}));
  EXPECT_EQ(in_window(true, 503), (std::vector{true, true, true}));
  EXPECT_EQ(in_window(true, 503), (std::vector{false, false, false}));  // a duplicate
}

// --- reordered requests of a size-sorted batch ---------------------------------------------------

class ReorderedRequestsTest : public ResponderSelectiveTest {
 protected:
  void connect_with_receives() {
    connect();
    for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  }
  void receive_reordered(uint32_t psn) {
    wire::Packet p = request(Opcode::RcSendOnly, psn);
    p.bth.extension_flags = peer_flags().reordered;
    receive(p, pattern(64));
  }
  void expect_plain_ack(uint32_t psn) {
    const auto sent = transmit();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].psn(), psn);
    EXPECT_EQ(sent[0].packet.aeth.kind, AckKind::Ack);
  }
};

TEST_F(ReorderedRequestsTest, AreExecutedInOrderAndNotTreatedAsALoss) {
  connect_with_receives();
  receive_reordered(501);
  receive_reordered(503);
  EXPECT_TRUE(transmit().empty());
  receive_send(500, 1);
  expect_plain_ack(501);
  receive_send(502, 1);
  expect_plain_ack(503);
  EXPECT_EQ(received(), (std::vector<uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(counter(CounterId::requests_reordered), 2u);
  EXPECT_EQ(counter(CounterId::out_of_sequence), 0u);
  EXPECT_EQ(counter(CounterId::naks_sequence_sent), 0u);
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u);
}

TEST_F(ReorderedRequestsTest, DoNotReplaceAnAckByANak) {
  connect_with_receives();
  receive_send(500, 1);
  receive_reordered(502);
  expect_plain_ack(500);
}

TEST_F(ReorderedRequestsTest, AreInTheSackListAfterALoss) {
  connect_with_receives();
  receive_reordered(502);
  receive_send(501, 1);  // 500 left before this packet
  const SackList list = transmit_sack();
  EXPECT_EQ(list.missing, 500u);
  EXPECT_EQ(list.buffered, (Psns{501, 502}));
  receive_send(500, 1);
  expect_plain_ack(502);
}

TEST_F(ReorderedRequestsTest, AreNotTreatedAsALossAfterTheGapIsClosed) {
  connect_with_receives();
  receive_reordered(503);
  receive_send(501, 1);
  EXPECT_EQ(transmit_sack().missing, 500u);
  receive_send(500, 1);
  expect_plain_ack(501);  // 502 may be in flight
  receive_send(504, 1);   // 504 left after 502: 502 is lost
  EXPECT_EQ(transmit_sack().buffered, (Psns{503, 504}));
}

TEST_F(ReorderedRequestsTest, AreDroppedSilentlyBeyondTheReach) {
  connect_with_receives();
  receive_reordered(500 + ReorderBuffer::kReach);
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u);
  receive_send(500, 1);
  expect_plain_ack(500);
}

// --- peers without extensions: standard behaviour, except for the flag in the first ACK and in
// --- responses to a loss -------------------------------------------------------------------------

TEST_F(ResponderSelectiveTest, AnnouncesTheCapabilityAgainForDuplicates) {
  connect();
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(post_receive(i, 64).ok());
  std::vector<uint8_t> flags;
  for (const uint32_t psn : {500u, 501u, 500u, 501u}) {  // the first response was lost
    receive(request(Opcode::RcSendOnly, psn), pattern(64));
    for (const Sent& s : transmit()) flags.push_back(s.packet.bth.extension_flags);
  }
  const uint8_t capable = own_flags().sack_capable;
  EXPECT_EQ(flags, (std::vector<uint8_t>{capable, 0, capable, capable}));
}

// A NIC that echoes reserved bits is no Verbena.
TEST_F(ResponderSelectiveTest, IgnoresUnknownFlags) {
  for (int flag = 1; flag < 128; ++flag) {
    const ExtensionFlags theirs = peer_flags_of_a_new_pair();
    if (flag == theirs.sack || flag == theirs.reordered || flag == theirs.piggyback) continue;
    connect();
    wire::Packet p = request(Opcode::RcSendOnly, 501);
    p.bth.extension_flags = static_cast<uint8_t>(flag);
    receive(p, pattern(64));
    EXPECT_EQ(engine_.state().packet_pool.in_use(), 0u) << flag;
    const auto nak = transmit();
    ASSERT_EQ(nak.size(), 1u);
    EXPECT_TRUE(nak[0].packet.payload.empty()) << flag;
    engine_.destroy_qp(qp_, now_);
  }
}

// Every packet that the engine sends to a peer without extensions: ACKs, NAKs, READ responses.
std::vector<Bytes> exchange_with_plain_peer(ResponderSelectiveTest& t) {
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
  t.receive(t.request(Opcode::RcSendOnly, 500), pattern(64));  // a duplicate
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

TEST(SelectiveRepeat, SetsReservedBitsForOtherPeersOnlyInTheFirstAckAndAfterALoss) {
  PlainEngine plain;
  SelectiveEngine selective;
  const auto before = exchange_with_plain_peer(plain);
  const auto now = exchange_with_plain_peer(selective);
  ASSERT_EQ(before.size(), now.size());
  ASSERT_GE(now.size(), 12u);
  int with_flags = 0;
  for (size_t i = 0; i < now.size(); ++i) {
    wire::ParseError why{};
    const auto p = wire::Packet::parse(now[i], &why);
    ASSERT_TRUE(p);
    const bool sequence_nak = p->op.verb == wire::Verb::Ack && p->aeth.kind == AckKind::Nak;
    const bool is_replay =
        p->op.verb == wire::Verb::ReadResponse && p->bth.psn.value() >= 502 && i > 6;
    const bool responds_to_duplicate =
        i == 6;  // the first response, which had the flag, may be lost
    const bool flags = i == 0 || sequence_nak || responds_to_duplicate || is_replay;
    EXPECT_EQ(p->bth.extension_flags, flags ? selective.own_flags().sack_capable : 0) << i;
    Bytes without = now[i];
    without[8] &= std::byte{0x80};
    EXPECT_EQ(before[i], without) << i;
    with_flags += p->bth.extension_flags != 0 ? 1 : 0;
  }
  EXPECT_EQ(with_flags, 5);
}

}  // namespace
}  // namespace verbena::core
