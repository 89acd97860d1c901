// The packets that the requester sends, and when.
#include "core/requester.h"

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::NakCode;
using wire::Opcode;
using Opcodes = std::vector<Opcode>;

class RequesterTest : public EngineTest {};

TEST_F(RequesterTest, SegmentsAtTheMtu) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 600).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcWriteFirst);
  EXPECT_EQ(sent[1].opcode(), Opcode::RcWriteMiddle);
  EXPECT_EQ(sent[2].opcode(), Opcode::RcWriteLast);
  EXPECT_EQ(sent[0].psn(), 100u);
  EXPECT_EQ(sent[2].psn(), 102u);
  EXPECT_EQ(sent[0].packet.reth.length, 600u);
  EXPECT_EQ(sent[0].packet.reth.address, 0x7000u);
  EXPECT_EQ(sent[0].packet.payload.size(), 256u);
  EXPECT_EQ(sent[2].packet.payload.size(), 88u);
}

struct OnlyCase {
  SendOp op;
  Opcode opcode;
  Opcode first;
  Opcode last;
};
TEST_F(RequesterTest, UsesTheOpcodeOfEachOperation) {
  const OnlyCase cases[] = {
      {SendOp::Send, Opcode::RcSendOnly, Opcode::RcSendFirst, Opcode::RcSendLast},
      {SendOp::SendImm, Opcode::RcSendOnlyImm, Opcode::RcSendFirst, Opcode::RcSendLastImm},
      {SendOp::SendInvalidate, Opcode::RcSendOnlyInvalidate, Opcode::RcSendFirst,
       Opcode::RcSendLastInvalidate},
      {SendOp::Write, Opcode::RcWriteOnly, Opcode::RcWriteFirst, Opcode::RcWriteLast},
      {SendOp::WriteImm, Opcode::RcWriteOnlyImm, Opcode::RcWriteFirst, Opcode::RcWriteLastImm}};
  connect();
  for (const OnlyCase& c : cases) {
    ASSERT_TRUE(post(c.op, 1, 0).ok());
    EXPECT_EQ(transmit_opcodes(), Opcodes{c.opcode});
    ASSERT_TRUE(post(c.op, 1, 257).ok());
    EXPECT_EQ(transmit_opcodes(), (Opcodes{c.first, c.last}));
  }
}

TEST_F(RequesterTest, RequestsAcksAtTheEndOfAMessageAndAtIntervals) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 256 * 20).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 20u);
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].packet.bth.ack_request, i == 7 || i == 15 || i == 19) << i;
  }
}

TEST_F(RequesterTest, SetsSolicitedOnlyOnOperationsThatConsumeAReceive) {
  connect();
  for (const auto& [op, expected] : {std::pair{SendOp::Send, true},
                                     {SendOp::SendImm, true},
                                     {SendOp::WriteImm, true},
                                     {SendOp::Write, false}}) {
    ASSERT_TRUE(post(op, 1, 600, kSolicited).ok());
    const auto sent = transmit();
    ASSERT_EQ(sent.size(), 3u);
    EXPECT_FALSE(sent[0].packet.bth.solicited);
    EXPECT_EQ(sent[2].packet.bth.solicited, expected);
  }
}

TEST_F(RequesterTest, SetsMigReqInRequests) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Read, 1, 8).ok());
  for (const Sent& s : transmit()) EXPECT_TRUE(s.packet.bth.migrated);
}

TEST_F(RequesterTest, PadsThePayloadToFourBytes) {
  connect();
  for (uint32_t length = 0; length < 9; ++length) {
    ASSERT_TRUE(post(SendOp::Send, 1, length).ok());
    const auto sent = transmit();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].packet.payload.size(), length);
    EXPECT_EQ(sent[0].bytes.size() % 4, 0u);
  }
}

TEST_F(RequesterTest, CopiesInlineDataWhenPosted) {
  connect();
  Bytes data = pattern(40);
  const Bytes original = data;
  const Sge sge{reinterpret_cast<uint64_t>(data.data()), 40, 0};
  SendRequest r;
  r.flags = kInline;
  r.sges = {&sge, 1};
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  std::ranges::fill(data, std::byte{0});
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(std::ranges::equal(sent[0].packet.payload, original));
}

TEST_F(RequesterTest, RejectsInvalidRequests) {
  connect({.depth = 2});
  Sge five[5] = {};
  SendRequest r;
  r.sges = five;
  EXPECT_EQ(engine_.post_send(qp(), r, now_).error().code, EINVAL);
  EXPECT_EQ(post(SendOp::Send, 1, 65, kInline).error().code, ENOMEM);
  EXPECT_EQ(post(SendOp::Read, 1, 8, kInline).error().code, EINVAL);
  EXPECT_EQ(post(SendOp::FetchAdd, 1, 4).error().code, EINVAL);
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  EXPECT_EQ(post(SendOp::Send, 3, 8).error().code, ENOMEM);
}

TEST_F(RequesterTest, RejectsReadsWithoutAReadDepth) {
  connect({.max_read_atomic = 0});
  EXPECT_EQ(post(SendOp::Read, 1, 8).error().code, EINVAL);
}

TEST_F(RequesterTest, CompletesInOrderAndOnlySignalled) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8, kSignaled).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8, 0).ok());
  ASSERT_TRUE(post(SendOp::Write, 3, 8, kSignaled).ok());
  transmit();
  receive_ack(102);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {3, WcStatus::Success}}));
  EXPECT_EQ(engine_.next_deadline(), kNever);
  EXPECT_TRUE(qp().peer()->is_idle());
}

TEST_F(RequesterTest, PartialAckCompletesNothing) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 600).ok());
  transmit();
  receive_ack(101);
  EXPECT_TRUE(completions().empty());
  receive_ack(102);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
}

TEST_F(RequesterTest, ReadDepthLimitsOutstandingReads) {
  connect({.max_read_atomic = 2});
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(post(SendOp::FetchAdd, i, 8).ok());
  EXPECT_EQ(transmit().size(), 2u);
  wire::Packet answer = request(Opcode::RcAtomicAck, 100);
  receive(answer);
  EXPECT_EQ(transmit().size(), 1u);
}

TEST_F(RequesterTest, FenceWaitsForReadsBeforeIt) {
  connect();
  ASSERT_TRUE(post(SendOp::Read, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8, kSignaled | kFence).ok());
  EXPECT_EQ(transmit_opcodes(), Opcodes{Opcode::RcReadRequest});
  receive(request(Opcode::RcReadResponseOnly, 100), pattern(8));
  EXPECT_EQ(transmit_opcodes(), Opcodes{Opcode::RcSendOnly});
}

TEST_F(RequesterTest, ReadStoresItsDataAndReportsItsLength) {
  connect();
  ASSERT_TRUE(post(SendOp::Read, 1, 300).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.reth.length, 300u);
  const Bytes data = pattern(300);
  receive(request(Opcode::RcReadResponseFirst, 100), std::span(data).first(256));
  receive(request(Opcode::RcReadResponseLast, 101), std::span(data).subspan(256));
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].byte_count, 300u);
  EXPECT_EQ(done[0].opcode, WcOpcode::Read);
  EXPECT_TRUE(std::ranges::equal(data, std::span(memory_).first(300)));
}

TEST_F(RequesterTest, ReadResponseOfTheWrongLengthFailsTheRequest) {
  connect();
  ASSERT_TRUE(post(SendOp::Read, 1, 300).ok());
  transmit();
  receive(request(Opcode::RcReadResponseFirst, 100), pattern(100));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::BadResponse}}));
  EXPECT_EQ(qp().state(), QpState::Error);
}

TEST_F(RequesterTest, ReadResponseToAnAtomicFailsTheRequest) {
  connect();
  ASSERT_TRUE(post(SendOp::FetchAdd, 1, 8).ok());
  transmit();
  receive(request(Opcode::RcReadResponseOnly, 100), pattern(8));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::BadResponse}}));
}

// An invalid lkey fails its own request, after those before it, and the engine does not spin
// meanwhile.
TEST_F(RequesterTest, InvalidLkeyFailsAfterEarlierRequests) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  const Sge bad{kIova, 8, key_ ^ 1};
  SendRequest r;
  r.wr_id = 2;
  r.sges = {&bad, 1};
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  ASSERT_TRUE(post(SendOp::Write, 3, 8).ok());
  EXPECT_EQ(transmit().size(), 1u);
  EXPECT_TRUE(completions().empty());
  receive_ack(100);
  transmit();
  EXPECT_EQ(
      completions(),
      (Completed{{1, WcStatus::Success}, {2, WcStatus::LocalProtection}, {3, WcStatus::Flushed}}));
  EXPECT_EQ(qp().state(), QpState::Error);
}

TEST_F(RequesterTest, FatalNaksFailTheRequest) {
  const std::pair<NakCode, WcStatus> cases[] = {
      {NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest},
      {NakCode::RemoteAccess, WcStatus::RemoteAccess},
      {NakCode::RemoteOperational, WcStatus::RemoteOperation}};
  for (const auto& [code, status] : cases) {
    connect();
    ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
    ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
    ASSERT_TRUE(post(SendOp::Write, 3, 8, 0).ok());
    transmit();
    receive_nak(101, AckKind::Nak, static_cast<uint8_t>(code));
    EXPECT_EQ(completions(),
              (Completed{{1, WcStatus::Success}, {2, status}, {3, WcStatus::Flushed}}));
    EXPECT_EQ(qp().state(), QpState::Error);
    EXPECT_TRUE(qp().peer()->is_idle());
    EXPECT_EQ(engine_.next_deadline(), kNever);
    ASSERT_FALSE(engine_.state().failures.empty());
    EXPECT_EQ(engine_.state().failures.back().wr_id, 2u);
  }
}

TEST_F(RequesterTest, LocalOperationsWaitForEarlierRequests) {
  connect();
  const uint32_t window = engine_.memory().add_window(kPd, WindowType::Type2).value();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  SendRequest bind;
  bind.op = SendOp::BindWindow;
  bind.wr_id = 2;
  bind.flags = kSignaled;
  bind.window_rkey = window;
  const uint32_t bound = window ^ 1;
  bind.bind = {key_, kIova, 64, kRemoteRead, bound};
  ASSERT_TRUE(engine_.post_send(qp(), bind, now_).ok());
  transmit();
  EXPECT_EQ(engine_.state().memory.resolve(bound, kPd, qp().qpn(), kIova, 8, kRemoteRead), nullptr);
  receive_ack(100);
  transmit();
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
  EXPECT_NE(engine_.state().memory.resolve(bound, kPd, qp().qpn(), kIova, 8, kRemoteRead), nullptr);
}

}  // namespace
}  // namespace verbena::core
