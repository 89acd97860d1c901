// Two Verbenas that have announced their extensions; one has a delayed ACK for the other.
#pragma once

#include "tests/unit/core/engine_support.h"

namespace verbena::core {

class PiggybackFixture : public EngineTest {
 public:
  explicit PiggybackFixture(const CongestionAlgorithm& congestion = kDefaultCongestionAlgorithm)
      : EngineTest(true, true, congestion) {}
  // Connects and completes the first message each way: by default our PSN 100 and the peer's PSN
  // 500.
  void connect_with_extensions(const TestShape& shape = {}) {
    using wire::Opcode;
    connect(shape);
    ASSERT_TRUE(post_receive(90, 256).ok());
    receive(request(Opcode::RcSendOnly, shape.rq_psn), pattern(8));
    ASSERT_EQ(transmit_opcodes(), std::vector{Opcode::RcAck});
    ASSERT_TRUE(post(SendOp::Send, 91, 8).ok());
    ASSERT_EQ(transmit_opcodes(), std::vector{Opcode::RcSendOnly});
    wire::Packet ack = request(Opcode::RcAck, shape.sq_psn);
    ack.aeth = {wire::AckKind::Ack, wire::kUnlimitedCredits, 0};
    ack.bth.extension_flags = peer_flags().sack_capable;
    receive(ack);
    ASSERT_EQ(completions().size(), 2u);
  }
  // The peer's SEND consumes a receive and is not acknowledged yet.
  void make_ack_due(uint32_t psn = 501) {
    ASSERT_TRUE(post_receive(92, 256, 1024).ok());
    wire::Packet p = request(wire::Opcode::RcSendOnly, psn);
    p.bth.extension_flags = peer_flags().sack;
    receive(p, pattern(8));
    ASSERT_EQ(completions(), (Completed{{92, WcStatus::Success}}));
  }
};

}  // namespace verbena::core
