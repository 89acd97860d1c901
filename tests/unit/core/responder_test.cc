// Which requests the responder executes, which it rejects, and its responses.
#include "core/responder.h"

#include <cstring>

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::NakCode;
using wire::Opcode;
using Events = std::vector<EventKind>;
using Opcodes = std::vector<Opcode>;

class ResponderTest : public EngineTest {
 public:
  // The one packet that the engine sends.
  Sent transmit_one() {
    auto sent = transmit();
    EXPECT_EQ(sent.size(), 1u);
    return sent.empty() ? Sent{} : std::move(sent[0]);
  }
  void expect_nak(AckKind kind, uint8_t value, uint32_t psn) {
    const Sent s = transmit_one();
    EXPECT_EQ(s.opcode(), Opcode::RcAck);
    EXPECT_EQ(s.packet.aeth.kind, kind);
    EXPECT_EQ(s.packet.aeth.value, value);
    EXPECT_EQ(s.psn(), psn);
  }
  void expect_refused(NakCode code, EventKind event, uint32_t psn = 500) {
    expect_nak(AckKind::Nak, static_cast<uint8_t>(code), psn);
    EXPECT_EQ(qp().state(), QpState::Error);
    EXPECT_EQ(events(), Events{event});
    ASSERT_EQ(engine_.state().failures.size(), 1u);
    EXPECT_TRUE(engine_.state().failures[0].as_responder);
    engine_.state().failures.clear();
  }
};

TEST_F(ResponderTest, SendIsPlacedCompletedAndAcknowledged) {
  connect();
  ASSERT_TRUE(post_receive(1, 600, 1000).ok());
  const Bytes data = pattern(300);
  receive(request(Opcode::RcSendFirst, 500), std::span(data).first(256));
  wire::Packet last = request(Opcode::RcSendLastImm, 501);
  last.immediate = 0xCAFE;
  last.bth.solicited = true;
  receive(last, std::span(data).subspan(256));
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].byte_count, 300u);
  EXPECT_EQ(done[0].immediate_or_rkey, 0xCAFEu);
  EXPECT_EQ(done[0].flags, kWcWithImmediate);
  EXPECT_TRUE(done[0].solicited);
  EXPECT_TRUE(std::ranges::equal(data, std::span(memory_).subspan(1000, 300)));
  const Sent ack = transmit_one();  // one ACK for both packets
  EXPECT_EQ(ack.opcode(), Opcode::RcAck);
  EXPECT_EQ(ack.psn(), 501u);
  EXPECT_EQ(ack.packet.aeth.msn, 1u);
  EXPECT_TRUE(ack.packet.bth.migrated);  // hardware sends 1, and some NICs expect it
  EXPECT_FALSE(ack.packet.bth.ack_request);
}

TEST_F(ResponderTest, SendsNoAckWithoutAnAckRequest) {
  connect();
  ASSERT_TRUE(post_receive(1, 8).ok());
  wire::Packet p = request(Opcode::RcSendOnly, 500);
  p.bth.ack_request = false;
  receive(p, pattern(8));
  EXPECT_TRUE(transmit().empty());
}

TEST_F(ResponderTest, WriteIsPlacedAtItsAddress) {
  connect();
  wire::Packet p = request(Opcode::RcWriteFirst, 500);
  p.reth = {kIova + 64, key_, 300};
  const Bytes data = pattern(300);
  receive(p, std::span(data).first(256));
  receive(request(Opcode::RcWriteLast, 501), std::span(data).subspan(256));
  EXPECT_TRUE(std::ranges::equal(data, std::span(memory_).subspan(64, 300)));
  EXPECT_EQ(transmit_one().psn(), 501u);
}

TEST_F(ResponderTest, WriteWithImmediateConsumesAReceiveAtItsEnd) {
  connect();
  wire::Packet p = request(Opcode::RcWriteFirst, 500);
  p.reth = {kIova, key_, 260};
  receive(p, pattern(256));
  receive(request(Opcode::RcWriteLastImm, 501), pattern(4));
  expect_nak(AckKind::RnrNak, 12, 501);
  ASSERT_TRUE(post_receive(1, 0).ok());
  receive(request(Opcode::RcWriteLastImm, 501), pattern(4));
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].opcode, WcOpcode::ReceiveWriteImm);
  EXPECT_EQ(done[0].byte_count, 260u);
}

TEST_F(ResponderTest, ZeroLengthNeedsNoKey) {
  connect();
  wire::Packet p = request(Opcode::RcWriteOnly, 500);
  p.reth = {0xDEAD, 0xBAD, 0};
  receive(p);
  wire::Packet q = request(Opcode::RcReadRequest, 501);
  q.reth = {0xDEAD, 0xBAD, 0};
  receive(q);
  EXPECT_EQ(transmit_opcodes(), (Opcodes{Opcode::RcReadResponseOnly, Opcode::RcAck}));
}

TEST_F(ResponderTest, SendsAnRnrNakWithoutAReceive) {
  connect();
  receive(request(Opcode::RcSendOnly, 500), pattern(8));
  expect_nak(AckKind::RnrNak, 12, 500);
  // Later packets are dropped silently until the peer retransmits.
  receive(request(Opcode::RcSendOnly, 501), pattern(8));
  EXPECT_TRUE(transmit().empty());
  receive(request(Opcode::RcSendOnly, 500), pattern(8));
  expect_nak(AckKind::RnrNak, 12, 500);
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(ResponderTest, SendsOneNakPerGap) {
  connect();
  receive(request(Opcode::RcWriteOnly, 502));
  receive(request(Opcode::RcWriteOnly, 503));
  expect_nak(AckKind::Nak, 0, 500);
  receive(request(Opcode::RcWriteOnly, 504));
  EXPECT_TRUE(transmit().empty());
  receive(request(Opcode::RcWriteOnly, 500));
  EXPECT_EQ(transmit_one().psn(), 500u);
  receive(request(Opcode::RcWriteOnly, 502));
  expect_nak(AckKind::Nak, 0, 501);
}

TEST_F(ResponderTest, ReceivingTheMissingPacketInTimeCancelsTheNak) {
  connect();
  receive(request(Opcode::RcWriteOnly, 501));
  receive(request(Opcode::RcWriteOnly, 500));
  const Sent s = transmit_one();
  EXPECT_EQ(s.packet.aeth.kind, AckKind::Ack);
  EXPECT_EQ(s.psn(), 500u);
}

TEST_F(ResponderTest, SegmentsAReadResponse) {
  connect();
  std::ranges::copy(pattern(600), memory_.begin());
  wire::Packet p = request(Opcode::RcReadRequest, 500);
  p.reth = {kIova, key_, 600};
  receive(p);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcReadResponseFirst);
  EXPECT_EQ(sent[1].opcode(), Opcode::RcReadResponseMiddle);
  EXPECT_EQ(sent[2].opcode(), Opcode::RcReadResponseLast);
  EXPECT_EQ(sent[2].psn(), 502u);
  EXPECT_TRUE(std::ranges::equal(sent[1].packet.payload, std::span(memory_).subspan(256, 256)));
  for (const Sent& s : sent) EXPECT_TRUE(s.packet.bth.migrated);
  receive(request(Opcode::RcWriteOnly, 503));  // a READ uses one PSN per response packet
  EXPECT_EQ(transmit_one().psn(), 503u);
}

TEST_F(ResponderTest, FullSinkDelaysReadResponsesAndLosesNone) {
  connect();
  wire::Packet p = request(Opcode::RcReadRequest, 500);
  p.reth = {kIova, key_, 256 * 10};
  receive(p);
  receive(request(Opcode::RcWriteOnly, 510));
  std::vector<uint32_t> psns;
  for (auto sent = transmit(3); !sent.empty(); sent = transmit(3)) {
    EXPECT_LE(sent.size(), 3u);
    for (const Sent& s : sent) psns.push_back(s.psn());
  }
  ASSERT_EQ(psns.size(), 11u);
  for (uint32_t i = 0; i < 11; ++i) EXPECT_EQ(psns[i], 500 + i);
}

TEST_F(ResponderTest, ExecutesAtomics) {
  connect();
  uint64_t value = 40;
  std::memcpy(memory_.data(), &value, 8);
  wire::Packet add = request(Opcode::RcFetchAdd, 500);
  add.atomic.swap_or_add = 2;
  receive(add);
  wire::Packet swap = request(Opcode::RcCompareSwap, 501);
  swap.atomic.compare = 42;
  swap.atomic.swap_or_add = 7;
  receive(swap);
  swap.bth.psn = wire::Psn(502);
  receive(swap);  // compares with 42, finds 7
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcAtomicAck);
  EXPECT_EQ(sent[0].packet.original, 40u);
  EXPECT_EQ(sent[1].packet.original, 42u);
  EXPECT_EQ(sent[2].packet.original, 7u);
  std::memcpy(&value, memory_.data(), 8);
  EXPECT_EQ(value, 7u);
}

TEST_F(ResponderTest, RejectsAMisalignedAtomic) {
  connect();
  wire::Packet p = request(Opcode::RcFetchAdd, 500);
  p.atomic.address = kIova + 4;
  receive(p);
  expect_refused(NakCode::InvalidRequest, EventKind::QpRequestError);
}

TEST_F(ResponderTest, RkeyViolationRaisesAnAccessErrorEvent) {
  for (const Opcode opcode : {Opcode::RcWriteOnly, Opcode::RcReadRequest, Opcode::RcFetchAdd}) {
    connect();
    wire::Packet p = request(opcode, 500);
    p.reth = {kIova, key_ ^ 1, opcode == Opcode::RcWriteOnly ? 8u : 16u};
    p.atomic.rkey = key_ ^ 1;
    receive(p, opcode == Opcode::RcWriteOnly ? pattern(8) : Bytes{});
    expect_refused(NakCode::RemoteAccess, EventKind::QpAccessError);
  }
}

TEST_F(ResponderTest, RejectsAccessThatTheQueuePairDoesNotAllow) {
  connect({.access = 0});
  wire::Packet p = request(Opcode::RcReadRequest, 500);
  p.reth.length = 8;
  receive(p);
  expect_refused(NakCode::RemoteAccess, EventKind::QpAccessError);
}

TEST_F(ResponderTest, RejectsAddressPlusLengthThatWraps) {
  for (const uint64_t address :
       {~uint64_t{0} - 7, ~uint64_t{0}, kIova - 8, kIova + kRegionBytes - 8}) {
    connect();
    wire::Packet p = request(Opcode::RcReadRequest, 500);
    p.reth = {address, key_, 16};
    receive(p);
    expect_refused(NakCode::RemoteAccess, EventKind::QpAccessError);
  }
}

TEST_F(ResponderTest, RejectsASendLongerThanTheReceiveBuffer) {
  connect();
  ASSERT_TRUE(post_receive(1, 300).ok());
  ASSERT_TRUE(post_receive(2, 300).ok());
  receive(request(Opcode::RcSendFirst, 500), pattern(256));
  receive(request(Opcode::RcSendLast, 501), pattern(100));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalLength}, {2, WcStatus::Flushed}}));
  expect_refused(NakCode::InvalidRequest, EventKind::QpRequestError, 501);
}

struct OrderCase {
  const char* name;
  std::vector<std::pair<Opcode, uint32_t>> packets;  // with their payload bytes
};
TEST_F(ResponderTest, RejectsInvalidOpcodeSequences) {
  const OrderCase cases[] = {
      {"middle without first", {{Opcode::RcSendMiddle, 256}}},
      {"last without first", {{Opcode::RcWriteLast, 8}}},
      {"only in a message", {{Opcode::RcSendFirst, 256}, {Opcode::RcSendOnly, 8}}},
      {"first in a message", {{Opcode::RcSendFirst, 256}, {Opcode::RcSendFirst, 256}}},
      {"read in a message", {{Opcode::RcSendFirst, 256}, {Opcode::RcReadRequest, 0}}},
      {"write ends a send", {{Opcode::RcSendFirst, 256}, {Opcode::RcWriteLast, 8}}},
      {"short first", {{Opcode::RcSendFirst, 252}}},
      {"long only", {{Opcode::RcSendOnly, 260}}},
      {"empty last", {{Opcode::RcSendFirst, 256}, {Opcode::RcSendLast, 0}}},
      {"atomic with payload", {{Opcode::RcFetchAdd, 8}}},
  };
  for (const OrderCase& c : cases) {
    SCOPED_TRACE(c.name);
    connect();
    ASSERT_TRUE(post_receive(1, 4096).ok());
    uint32_t psn = 500;
    for (const auto& [opcode, bytes] : c.packets) receive(request(opcode, psn++), pattern(bytes));
    completions();
    expect_refused(NakCode::InvalidRequest, EventKind::QpRequestError, psn - 1);
  }
}

TEST_F(ResponderTest, RejectsAWriteOfAnotherLengthThanItsRethStates) {
  for (const uint32_t stated : {255u, 257u}) {
    connect();
    wire::Packet p = request(Opcode::RcWriteOnly, 500);
    p.reth = {kIova, key_, stated};
    receive(p, pattern(256));
    expect_refused(NakCode::InvalidRequest, EventKind::QpRequestError);
  }
}

TEST_F(ResponderTest, RejectsMoreReadsThanMaxDestRdAtomic) {
  connect({.max_dest_read_atomic = 1});
  wire::Packet p = request(Opcode::RcReadRequest, 500);
  p.reth.length = 8;
  receive(p);
  p.bth.psn = wire::Psn(501);
  receive(p);
  EXPECT_EQ(qp().state(), QpState::Error);
  EXPECT_EQ(events(), Events{EventKind::QpRequestError});
  EXPECT_EQ(transmit_opcodes(), (Opcodes{Opcode::RcReadResponseOnly, Opcode::RcAck}));
}

TEST_F(ResponderTest, RejectsTheRestOfAReadWhoseRegionIsRemoved) {
  connect();
  wire::Packet p = request(Opcode::RcReadRequest, 500);
  p.reth = {kIova, key_, 256 * 4};
  receive(p);
  EXPECT_EQ(transmit(2).size(), 2u);
  ASSERT_TRUE(engine_.memory().remove_region(key_).ok());
  expect_refused(NakCode::RemoteAccess, EventKind::QpAccessError, 502);
}

TEST_F(ResponderTest, RejectsInvalidateOfARegion) {
  connect();
  ASSERT_TRUE(post_receive(1, 8).ok());
  wire::Packet p = request(Opcode::RcSendOnlyInvalidate, 500);
  p.invalidate_rkey = key_;
  receive(p, pattern(8));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::RemoteAccess}}));
  expect_refused(NakCode::RemoteAccess, EventKind::QpAccessError);
}

TEST_F(ResponderTest, FirstPacketInRtrRaisesCommEstablished) {
  connect();
  events();
  QpAttributes attr = qp().attributes();
  to_state(qp(), QpState::Reset);
  using namespace qp_attr;
  attr.state = QpState::Init;
  engine_.modify_qp(qp(), attr, kState | kPkeyIndex | kPort | kAccessFlags, now_);
  attr.state = QpState::Rtr;
  engine_.modify_qp(
      qp(), attr,
      kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
      now_);
  receive(request(Opcode::RcWriteOnly, 500));
  receive(request(Opcode::RcWriteOnly, 501));
  EXPECT_EQ(events(), Events{EventKind::CommEstablished});
  EXPECT_EQ(transmit_one().psn(), 501u);
}

}  // namespace
}  // namespace verbena::core
