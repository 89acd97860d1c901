// ATOMIC WRITE and FLUSH at the requester.
#include <cstring>

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;
using Opcodes = std::vector<Opcode>;

class RequesterAtomicWriteTest : public EngineTest {
 public:
  // The peer's response to our ATOMIC WRITE or FLUSH.
  void receive_response(uint32_t psn, size_t bytes = 0) {
    wire::Packet p = request(Opcode::RcReadResponseOnly, psn);
    p.aeth = {wire::AckKind::Ack, wire::kUnlimitedCredits, 0};
    receive(p, pattern(bytes));
  }
};

class RequesterFlushTest : public RequesterAtomicWriteTest {
 public:
  RequesterFlushTest() { connect(); }
  Status post_flush(uint64_t wr_id, uint8_t placement = wire::kPlaceGlobal,
                    uint8_t selectivity = wire::kSelectRange) {
    SendRequest r;
    r.op = SendOp::Flush;
    r.wr_id = wr_id;
    r.flags = kSignaled;
    r.remote_address = 0x7000;
    r.rkey = 0x1234;
    r.flush.placement = placement;
    r.flush.selectivity = selectivity;
    r.flush.length = 4096;
    return engine_.post_send(qp(), r, now_);
  }
};

TEST_F(RequesterAtomicWriteTest, SendsOnePacketOfEightBytes) {
  connect();
  const Bytes value = pattern(8, 3);
  std::ranges::copy(value, memory_.begin());
  ASSERT_TRUE(post(SendOp::AtomicWrite, 1, 8).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcAtomicWrite);
  EXPECT_EQ(sent[0].packet.reth.address, 0x7000u);
  EXPECT_EQ(sent[0].packet.reth.length, 8u);
  EXPECT_EQ(Bytes(sent[0].packet.payload.begin(), sent[0].packet.payload.end()), value);
  EXPECT_TRUE(sent[0].packet.bth.ack_request);
  receive_response(100);
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].opcode, WcOpcode::AtomicWrite);
  EXPECT_EQ(done[0].status, WcStatus::Success);
  EXPECT_FALSE(next_deadline());
}

TEST_F(RequesterAtomicWriteTest, RejectsOtherLengthsAndUnalignedAddresses) {
  connect();
  for (const uint32_t length : {0u, 4u, 7u, 9u, 16u}) {
    EXPECT_EQ(post(SendOp::AtomicWrite, 1, length).error().code, EINVAL) << length;
  }
  const Sge sge{kIova, 8, key_};
  SendRequest r;
  r.op = SendOp::AtomicWrite;
  r.sges = {&sge, 1};
  r.remote_address = 0x7004;
  EXPECT_EQ(engine_.post_send(qp(), r, now_).error().code, EINVAL);
  EXPECT_TRUE(transmit().empty());
}

TEST_F(RequesterAtomicWriteTest, SendsInlineData) {
  connect();
  const uint64_t value = 0x1122334455667788;
  const Sge sge{reinterpret_cast<uint64_t>(&value), 8, 0};
  SendRequest r;
  r.op = SendOp::AtomicWrite;
  r.flags = kSignaled | kInline;
  r.sges = {&sge, 1};
  r.remote_address = 0x7000;
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(std::memcmp(sent[0].packet.payload.data(), &value, 8), 0);
}

TEST_F(RequesterAtomicWriteTest, CountsAgainstTheReadLimit) {
  connect({.max_read_atomic = 2});
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(post(SendOp::AtomicWrite, i, 8).ok());
  EXPECT_EQ(transmit().size(), 2u);
  EXPECT_TRUE(transmit().empty());
  receive_response(100);
  EXPECT_EQ(transmit().size(), 1u);
  connect({.max_read_atomic = 0});
  EXPECT_EQ(post(SendOp::AtomicWrite, 9, 8).error().code, EINVAL);
}

TEST_F(RequesterAtomicWriteTest, RetransmitsAfterALostRequestOrResponse) {
  connect();
  ASSERT_TRUE(post(SendOp::AtomicWrite, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  EXPECT_EQ(transmit_opcodes(), (Opcodes{Opcode::RcAtomicWrite, Opcode::RcWriteOnly}));
  receive_ack(101);  // for the WRITE after it: the response to the ATOMIC WRITE was lost
  EXPECT_TRUE(completions().empty());
  EXPECT_EQ(transmit_opcodes(), Opcodes{Opcode::RcAtomicWrite});
  time_out();
  const auto again = transmit();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].psn(), 100u);
  receive_response(100);
  receive_response(100);  // a duplicate
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
}

TEST_F(RequesterAtomicWriteTest, ResponseWithDataOrOfAnotherOpcodeFailsTheRequest) {
  connect();
  ASSERT_TRUE(post(SendOp::AtomicWrite, 1, 8).ok());
  transmit();
  receive_response(100, 8);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::BadResponse}}));
  connect();
  ASSERT_TRUE(post(SendOp::AtomicWrite, 2, 8).ok());
  transmit();
  receive(request(Opcode::RcAtomicAck, 100));
  EXPECT_EQ(completions(), (Completed{{2, WcStatus::BadResponse}}));
}

TEST_F(RequesterAtomicWriteTest, InvalidLkeyFailsTheRequest) {
  connect();
  ASSERT_TRUE(engine_.memory().remove_region(key_).ok());
  ASSERT_TRUE(post(SendOp::AtomicWrite, 1, 8).ok());
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalProtection}}));
}

TEST_F(RequesterFlushTest, SendsPlacementSelectivityAndRange) {
  ASSERT_TRUE(post_flush(1, wire::kPlacePersistent, wire::kSelectRegion).ok());
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcFlush);
  EXPECT_EQ(sent[0].packet.flush.placement, wire::kPlacePersistent);
  EXPECT_EQ(sent[0].packet.flush.selectivity, wire::kSelectRegion);
  EXPECT_EQ(sent[0].packet.reth.address, 0x7000u);
  EXPECT_EQ(sent[0].packet.reth.rkey, 0x1234u);
  EXPECT_EQ(sent[0].packet.reth.length, 4096u);
  EXPECT_TRUE(sent[0].packet.payload.empty());
  receive_response(100);
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].opcode, WcOpcode::Flush);
}

TEST_F(RequesterFlushTest, RejectsInvalidParameters) {
  EXPECT_EQ(post_flush(1, 0).error().code, EINVAL);
  EXPECT_EQ(post_flush(1, 4).error().code, EINVAL);
  EXPECT_EQ(post_flush(1, wire::kPlaceGlobal, 2).error().code, EINVAL);
  EXPECT_EQ(post(SendOp::Flush, 1, 8).error().code, EINVAL);  // with a local buffer
  EXPECT_TRUE(transmit().empty());
}

TEST_F(RequesterFlushTest, RetransmitsAfterALostResponse) {
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  ASSERT_TRUE(post_flush(2).ok());
  transmit();
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(transmit_opcodes(), (Opcodes{Opcode::RcWriteOnly, Opcode::RcFlush}));
  receive_response(101);  // acknowledges the WRITE before it too
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
}

TEST_F(RequesterFlushTest, FencedRequestsWaitForTheFlush) {
  ASSERT_TRUE(post_flush(1).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8, kSignaled | kFence).ok());
  EXPECT_EQ(transmit_opcodes(), (Opcodes{Opcode::RcFlush}));
  receive_response(100);
  EXPECT_EQ(transmit_opcodes(), (Opcodes{Opcode::RcWriteOnly}));
}

}  // namespace
}  // namespace verbena::core
