// AckScheduler: which response is due, its place in a batch, and which packet the receiver handles
// first.
#include "core/ack_scheduler.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/unit/core/turn_result_support.h"
#include "wire/packet.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::Opcode;
using wire::Psn;

TEST(AckScheduler, NothingIsDueAtFirst) {
  const AckScheduler acks;
  EXPECT_FALSE(acks.is_due());
  EXPECT_FALSE(acks.is_plain());
}

TEST(AckScheduler, OneAckCoversAllRequestsBeforeIt) {
  AckScheduler acks;
  acks.on_ack_due();
  acks.on_ack_due();
  EXPECT_TRUE(acks.is_plain());
  acks.on_sent();
  EXPECT_FALSE(acks.is_due());
}

TEST(AckScheduler, NakReplacesTheAck) {
  AckScheduler acks;
  acks.on_ack_due();
  acks.on_refused({AckKind::Nak, 0, 7});
  EXPECT_TRUE(acks.is_due());
  EXPECT_FALSE(acks.is_plain());
  ASSERT_TRUE(acks.nak());
  EXPECT_EQ(acks.nak()->msn, 7u);
  acks.on_sent();
  EXPECT_FALSE(acks.is_due());
}

TEST(AckScheduler, ExecutingARefusedRequestCancelsTheNak) {
  AckScheduler acks;
  acks.on_refused({AckKind::RnrNak, 1, 7});
  acks.on_executed();
  EXPECT_FALSE(acks.is_due());
}

TEST(AckScheduler, PutsTheAckBeforeTheRequestsIfSeveralQueuePairsAreActive) {
  EXPECT_EQ(AckScheduler::place({.only_active_qp = false, .on_wire = true, .can_piggyback = false}),
            AckPlace::First);
}

TEST(AckScheduler, PutsTheAckBeforeTheRequestsInSharedMemory) {
  EXPECT_EQ(AckScheduler::place({.only_active_qp = true, .on_wire = false, .can_piggyback = false}),
            AckPlace::First);
}

TEST(AckScheduler, EndsTheGsoBatchOfTheOnlyActiveQueuePair) {
  EXPECT_EQ(AckScheduler::place({.only_active_qp = true, .on_wire = true, .can_piggyback = false}),
            AckPlace::Last);
}

TEST(AckScheduler, PiggybacksOnBothMedia) {
  for (const bool on_wire : {false, true}) {
    EXPECT_EQ(
        AckScheduler::place({.only_active_qp = true, .on_wire = on_wire, .can_piggyback = true}),
        AckPlace::Piggybacked);
  }
}

TEST(AckScheduler, FirstRequestTakesTheOfferedAck) {
  AckScheduler acks;
  acks.on_ack_due();
  EXPECT_FALSE(acks.take_offer(3)) << "no ACK is offered";
  acks.offer(Psn(41));
  EXPECT_EQ(acks.take_offer(4), Psn(41));
  EXPECT_FALSE(acks.is_due());
  EXPECT_FALSE(acks.take_offer(5));
}

TEST(AckScheduler, AckStaysDueIfNoRequestTakesIt) {
  AckScheduler acks;
  acks.on_ack_due();
  acks.offer(Psn(41));
  acks.close_offer();
  EXPECT_FALSE(acks.take_offer(4));
  EXPECT_TRUE(acks.is_plain());
}

TEST(AckScheduler, RetractingARequestMakesItsPiggybackedAckDueAgain) {
  AckScheduler acks;
  acks.on_ack_due();
  acks.offer(Psn(41));
  ASSERT_TRUE(acks.take_offer(4));
  acks.on_retracted(5, 9);
  EXPECT_FALSE(acks.is_due()) << "the request with the piggybacked ACK is not among them";
  acks.on_retracted(4, 5);
  EXPECT_TRUE(acks.is_plain());
  acks.on_sent();
  acks.on_retracted(4, 5);
  EXPECT_FALSE(acks.is_due()) << "the ACK has since left in a packet of its own";
}

TEST(AckScheduler, ResetClearsAllState) {
  AckScheduler acks;
  acks.on_ack_due();
  acks.on_piggybacked(4);
  acks.on_refused({AckKind::Nak, 0, 7});
  acks.reset();
  acks.on_retracted(0, 100);
  EXPECT_FALSE(acks.is_due());
}

TEST(AckScheduler, DefersNothingIfNeitherPollNorReplyIsExpected) {
  EXPECT_FALSE(AckScheduler::may_defer(Defer::Nothing, kTurnWithWrite));
}

TEST(AckScheduler, DelaysTheAckOfAWriteUntilTheReply) {
  EXPECT_TRUE(AckScheduler::may_defer(Defer::UntilReply, kTurnWithWrite));
}

TEST(AckScheduler, DefersTheBatchOfASteadyPollerThatHasACompletion) {
  TurnResult turn = kTurnWithWrite;
  turn.only_acks_to_send = false;
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilPoll, turn));
  turn.completed = true;
  EXPECT_TRUE(AckScheduler::may_defer(Defer::UntilPoll, turn));
}

TEST(AckScheduler, DefersNothingWithoutAMessage) {
  TurnResult turn = kTurnWithWrite;
  turn.completed = true;
  turn.brought_messages = false;
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilPoll, turn));
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilReply, turn));
}

TEST(AckScheduler, NeverDelaysAReadResponse) {
  TurnResult turn = kTurnWithWrite;
  turn.completed = turn.response_due = true;
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilPoll, turn));
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilReply, turn));
}

TEST(AckScheduler, DoesNotDelayTheAckOfAStream) {
  TurnResult turn = kTurnWithWrite;
  turn.packets = AckScheduler::kBurstPackets;
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilReply, turn));
  --turn.packets;
  EXPECT_TRUE(AckScheduler::may_defer(Defer::UntilReply, turn));
}

TEST(AckScheduler, DoesNotDelayTheAckOfAMessageThatConsumedAReceive) {
  TurnResult turn = kTurnWithWrite;
  turn.used_receives = true;
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilReply, turn));
}

TEST(AckScheduler, DoesNotDelayTheAckIfMorePacketsWait) {
  TurnResult turn = kTurnWithWrite;
  turn.has_more = true;
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilReply, turn));
}

TEST(AckScheduler, DoesNotDelayTheAckBesideOtherPackets) {
  TurnResult turn = kTurnWithWrite;
  turn.only_acks_to_send = false;
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilReply, turn));
}

TEST(AckScheduler, SendsTheAckBeforeTheApplicationIsWoken) {
  TurnResult turn = kTurnWithWrite;
  turn.raises_event = true;
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilReply, turn));
}

TEST(AckScheduler, DoesNotExtendADelay) {
  TurnResult turn = kTurnWithWrite;
  turn.started_idle = false;
  EXPECT_FALSE(AckScheduler::may_defer(Defer::UntilReply, turn));
}

class AckOvertakes : public testing::Test {
 protected:
  void add(Opcode opcode, AckKind kind = AckKind::Ack) {
    wire::Packet p;
    p.bth.opcode = static_cast<uint8_t>(opcode);
    p.aeth.kind = kind;
    auto& bytes = storage_.emplace_back(wire::kMaxHeaderBytes);
    bytes.resize(wire::store_headers(p, bytes.data()));
  }
  bool overtakes() {
    std::vector<wire::RxPacket> packets;
    for (const auto& bytes : storage_) packets.push_back({.bytes = bytes});
    return ack_overtakes(packets);
  }
  std::vector<std::vector<std::byte>> storage_;
};

TEST_F(AckOvertakes, TheRequestBeforeIt) {
  add(Opcode::RcSendOnly);
  EXPECT_FALSE(overtakes()) << "there is no ACK";
  add(Opcode::RcAck);
  EXPECT_TRUE(overtakes());
}

TEST_F(AckOvertakes, NoResponse) {
  add(Opcode::RcReadResponseOnly);
  add(Opcode::RcAck);
  EXPECT_FALSE(overtakes());
}

TEST_F(AckOvertakes, NoRequestIfItIsANak) {
  for (const AckKind kind : {AckKind::Nak, AckKind::RnrNak}) {
    storage_.clear();
    add(Opcode::RcSendOnly);
    add(Opcode::RcAck, kind);
    EXPECT_FALSE(overtakes());
  }
}

TEST_F(AckOvertakes, NoRequestIfItIsTruncated) {
  add(Opcode::RcSendOnly);
  add(Opcode::RcAck);
  storage_[1].resize(wire::kBthBytes);
  EXPECT_FALSE(overtakes());
}

}  // namespace
}  // namespace verbena::core
