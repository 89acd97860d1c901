// Duplicate requests: the responder replays the response and does not execute them again.
#include <cstring>

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;
using Opcodes = std::vector<Opcode>;

class ResponderDuplicateTest : public EngineTest {
 public:
  uint64_t word() const {
    uint64_t v;
    std::memcpy(&v, memory_.data(), 8);
    return v;
  }
  wire::Packet add(uint32_t psn, uint64_t n) {
    wire::Packet p = request(Opcode::RcFetchAdd, psn);
    p.atomic.swap_or_add = n;
    return p;
  }
  wire::Packet read(uint32_t psn, uint64_t offset, uint32_t length) {
    wire::Packet p = request(Opcode::RcReadRequest, psn);
    p.reth = {kIova + offset, key_, length};
    return p;
  }
};

TEST_F(ResponderDuplicateTest, SendIsDeliveredOnceAndAcknowledgedTwice) {
  connect();
  ASSERT_TRUE(post_receive(1, 8).ok());
  ASSERT_TRUE(post_receive(2, 8).ok());
  receive(request(Opcode::RcSendOnly, 500), pattern(8));
  EXPECT_EQ(transmit().size(), 1u);
  receive(request(Opcode::RcSendOnly, 500), pattern(8, 9));
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].psn(), 500u);
  EXPECT_EQ(poll().size(), 1u);
}

TEST_F(ResponderDuplicateTest, WriteDoesNotWriteAgain) {
  connect();
  wire::Packet p = request(Opcode::RcWriteOnly, 500);
  p.reth.length = 8;
  receive(p, pattern(8));
  memory_[0] = std::byte{0x99};
  receive(p, pattern(8));
  EXPECT_EQ(memory_[0], std::byte{0x99});
}

TEST_F(ResponderDuplicateTest, ReplaysTheFirstResponseOfAnAtomic) {
  connect();
  receive(add(500, 5));
  receive(add(501, 5));
  transmit();
  receive(add(500, 5));
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].psn(), 500u);
  EXPECT_EQ(sent[0].packet.original, 0u);
  EXPECT_EQ(word(), 10u);
}

TEST_F(ResponderDuplicateTest, DropsADuplicateAtomicWithoutAResponderResource) {
  connect({.max_dest_read_atomic = 2});
  for (uint32_t i = 0; i < 3; ++i) {
    receive(add(500 + i, 1));
    transmit();
  }
  receive(add(500, 1));
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(counter(CounterId::duplicate_dropped), 1u);
  EXPECT_EQ(word(), 3u);
}

TEST_F(ResponderDuplicateTest, ReplaysAReadFromTheRequestedPsn) {
  connect();
  receive(read(500, 0, 256 * 4));
  transmit();
  receive(read(502, 512, 512));
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcReadResponseFirst);
  EXPECT_EQ(sent[0].psn(), 502u);
  EXPECT_EQ(sent[1].opcode(), Opcode::RcReadResponseLast);
}

TEST_F(ResponderDuplicateTest, DropsADuplicateReadOfOtherMemory) {
  connect();
  receive(read(500, 0, 512));
  transmit();
  receive(read(500, 4096, 512));  // another address
  receive(read(500, 0, 1024));    // more
  receive(read(501, 0, 256));     // not the address of that packet
  wire::Packet p = read(500, 0, 512);
  p.reth.rkey ^= 1;
  receive(p);
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(counter(CounterId::duplicate_dropped), 4u);
  EXPECT_EQ(qp().state(), QpState::Rts);
}

// The peer retransmits a READ, receives the first response after all, and continues. The next READ
// needs the same responder resource and is not one too many.
TEST_F(ResponderDuplicateTest, NewReadReplacesTheReplayOfAnOlderOne) {
  connect({.max_dest_read_atomic = 1});
  receive(read(500, 0, 256));
  transmit();
  receive(read(500, 0, 256));
  receive(read(501, 256, 256));
  EXPECT_EQ(qp().state(), QpState::Rts);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].psn(), 501u);
  EXPECT_TRUE(transmit().empty());
}

TEST_F(ResponderDuplicateTest, DropsADuplicateReadOfARemovedRegion) {
  connect();
  receive(read(500, 0, 256));
  transmit();
  ASSERT_TRUE(engine_.memory().remove_region(key_).ok());
  receive(read(500, 0, 256));
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(qp().state(), QpState::Rts);
  EXPECT_TRUE(events().empty());
}

TEST_F(ResponderDuplicateTest, ReplaysResponsesInOrderBeforeTheAck) {
  connect();
  receive(add(500, 1));
  receive(read(501, 0, 256));
  receive(request(Opcode::RcWriteOnly, 502));
  transmit();
  receive(request(Opcode::RcWriteOnly, 502));
  receive(read(501, 0, 256));
  receive(add(500, 1));
  EXPECT_EQ(transmit_opcodes(),
            (Opcodes{Opcode::RcAtomicAck, Opcode::RcReadResponseOnly, Opcode::RcAck}));
}

TEST_F(ResponderDuplicateTest, ExecutesNothingAfterTheQueuePairFailed) {
  connect();
  receive(add(500, 5));
  transmit();
  wire::Packet bad = request(Opcode::RcReadRequest, 501);
  bad.reth = {kIova, key_ ^ 1, 8};
  receive(bad);
  transmit();
  ASSERT_EQ(qp().state(), QpState::Error);
  receive(add(500, 5));
  receive(add(501, 5));
  receive(add(502, 5));
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(word(), 5u);
  EXPECT_EQ(counter(CounterId::qp_not_ready), 3u);
}

TEST_F(ResponderDuplicateTest, DropsUnsentResponsesInTheErrorState) {
  connect();
  receive(read(500, 0, 256 * 4));
  to_state(qp(), QpState::Error);
  EXPECT_TRUE(transmit().empty());
}

}  // namespace
}  // namespace verbena::core
