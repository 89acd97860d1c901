// Shared receive queues: order, capacity, the limit, and queue pairs that consume receives.
#include "core/shared_receive_queue.h"

#include <array>

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::Opcode;
using Events = std::vector<EventKind>;

class SharedReceiveQueueTest : public EngineTest {
 public:
  void connect_with_srq(uint32_t max_wr = 8, uint32_t pd = kPd) {
    srq_ = engine_.create_srq({.pd = pd, .max_wr = max_wr, .max_sges = 2});
    shape_.srq = srq_;
    connect(shape_);
  }

  Status post_to_srq(uint64_t wr_id, uint32_t length = 1024, uint64_t offset = 0) {
    const Sge sge{kIova + offset, length, key_};
    return srq_->post({.wr_id = wr_id, .sges = {&sge, 1}});
  }

  void send_to(QueuePair& qp, Opcode opcode, uint32_t psn, size_t bytes) {
    wire::Packet p = request(opcode, psn);
    p.bth.destination = qp.qpn();
    receive(p, pattern(bytes));
  }

  SharedReceiveQueue* srq_ = nullptr;
  TestShape shape_;
};

TEST_F(SharedReceiveQueueTest, QueuePairsConsumeTheOldestReceiveFirst) {
  connect_with_srq();
  QueuePair& other = make_connected(shape_);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(post_to_srq(id).ok());
  send_to(qp(), Opcode::RcSendOnly, 500, 10);
  send_to(other, Opcode::RcSendOnly, 500, 20);
  send_to(qp(), Opcode::RcSendOnly, 501, 30);
  const auto done = poll();
  ASSERT_EQ(done.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(done[i].wr_id, i + 1);
    EXPECT_EQ(done[i].status, WcStatus::Success);
    EXPECT_EQ(done[i].byte_count, 10 * (i + 1));
    EXPECT_EQ(done[i].qpn, i == 1 ? other.qpn() : qp().qpn());
  }
  EXPECT_TRUE(srq_->empty());
}

TEST_F(SharedReceiveQueueTest, InterleavedMessagesUseSeparateReceives) {
  connect_with_srq();
  QueuePair& other = make_connected(shape_);
  ASSERT_TRUE(post_to_srq(1, 1024, 0).ok());
  ASSERT_TRUE(post_to_srq(2, 1024, 4096).ok());
  send_to(qp(), Opcode::RcSendFirst, 500, 256);
  send_to(other, Opcode::RcSendFirst, 500, 256);
  EXPECT_TRUE(srq_->empty());
  send_to(other, Opcode::RcSendLast, 501, 7);
  send_to(qp(), Opcode::RcSendLast, 501, 5);
  const auto done = poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].wr_id, 2u);
  EXPECT_EQ(done[0].byte_count, 263u);
  EXPECT_EQ(done[1].wr_id, 1u);
  EXPECT_EQ(done[1].byte_count, 261u);
  const Bytes expected = pattern(256);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), memory_.begin()));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), memory_.begin() + 4096));
}

TEST_F(SharedReceiveQueueTest, ReceivesInUseCountAgainstTheCapacity) {
  connect_with_srq(2);
  ASSERT_TRUE(post_to_srq(1).ok());
  ASSERT_TRUE(post_to_srq(2).ok());
  EXPECT_EQ(post_to_srq(3).error().code, ENOMEM);
  send_to(qp(), Opcode::RcSendFirst, 500, 256);
  EXPECT_EQ(post_to_srq(3).error().code, ENOMEM);
  send_to(qp(), Opcode::RcSendLast, 501, 1);
  EXPECT_TRUE(post_to_srq(3).ok());
}

TEST_F(SharedReceiveQueueTest, RejectsTooManySgesAndTooLongBuffers) {
  connect_with_srq();
  const std::array<Sge, 3> three{};
  EXPECT_EQ(srq_->post({.wr_id = 1, .sges = three}).error().code, EINVAL);
  const Sge halves[2] = {{0, 1u << 31, 0}, {0, 1, 0}};
  EXPECT_EQ(srq_->post({.wr_id = 1, .sges = halves}).error().code, EINVAL);
  EXPECT_TRUE(srq_->empty());
}

TEST_F(SharedReceiveQueueTest, EmptyQueueCausesAnRnrNakUntilAReceiveIsPosted) {
  connect_with_srq();
  send_to(qp(), Opcode::RcSendOnly, 500, 10);
  auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.aeth.kind, AckKind::RnrNak);
  EXPECT_EQ(sent[0].packet.aeth.value, 12);
  ASSERT_TRUE(post_to_srq(1).ok());
  send_to(qp(), Opcode::RcSendOnly, 500, 10);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
}

TEST_F(SharedReceiveQueueTest, WriteWithImmediateConsumesAReceiveAtItsEnd) {
  connect_with_srq();
  ASSERT_TRUE(post_to_srq(1).ok());
  wire::Packet first = request(Opcode::RcWriteFirst, 500);
  first.reth.length = 257;
  receive(first, pattern(256));
  EXPECT_EQ(srq_->posted(), 1u);
  send_to(qp(), Opcode::RcWriteLastImm, 501, 1);
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].opcode, WcOpcode::ReceiveWriteImm);
  EXPECT_EQ(done[0].byte_count, 257u);
  EXPECT_TRUE(srq_->empty());
}

TEST_F(SharedReceiveQueueTest, BuffersMustBelongToTheProtectionDomainOfTheQueue) {
  connect_with_srq(8, kPd + 1);  // the key belongs to kPd, so it is invalid for this queue
  ASSERT_TRUE(post_to_srq(1).ok());
  send_to(qp(), Opcode::RcSendOnly, 500, 10);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalProtection}}));
  EXPECT_EQ(events(), (Events{EventKind::QpFatal, EventKind::LastWqeReached}));
}

TEST_F(SharedReceiveQueueTest, TooLongAMessageFailsOneReceiveAndKeepsTheOthers) {
  connect_with_srq();
  ASSERT_TRUE(post_to_srq(1, 100).ok());
  ASSERT_TRUE(post_to_srq(2, 100).ok());
  send_to(qp(), Opcode::RcSendOnly, 500, 101);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalLength}}));
  EXPECT_EQ(events(), (Events{EventKind::QpRequestError, EventKind::LastWqeReached}));
  EXPECT_EQ(srq_->posted(), 1u);
  QueuePair& other = make_connected(shape_);
  send_to(other, Opcode::RcSendOnly, 500, 100);
  EXPECT_EQ(completions(), (Completed{{2, WcStatus::Success}}));
}

TEST_F(SharedReceiveQueueTest, ErrorFlushesTheReceiveInUseAndRaisesLastWqeReached) {
  connect_with_srq();
  ASSERT_TRUE(post_to_srq(1).ok());
  ASSERT_TRUE(post_to_srq(2).ok());
  send_to(qp(), Opcode::RcSendFirst, 500, 256);
  to_state(qp(), QpState::Error);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Flushed}}));
  EXPECT_EQ(events(), Events{EventKind::LastWqeReached});
  EXPECT_EQ(srq_->posted(), 1u);
  to_state(qp(), QpState::Error);
  EXPECT_EQ(events(), Events{});
}

TEST_F(SharedReceiveQueueTest, QueuePairsWithoutSrqRaiseNoLastWqeReached) {
  connect();
  to_state(qp(), QpState::Error);
  EXPECT_EQ(events(), Events{});
}

TEST_F(SharedReceiveQueueTest, ResetAndDestroyReturnCapacity) {
  connect_with_srq(1);
  ASSERT_TRUE(post_to_srq(1).ok());
  send_to(qp(), Opcode::RcSendFirst, 500, 256);
  to_state(qp(), QpState::Reset);
  ASSERT_TRUE(post_to_srq(2).ok());
  QueuePair& other = make_connected(shape_);
  send_to(other, Opcode::RcSendFirst, 500, 256);
  engine_.destroy_qp(&other, now_);
  EXPECT_TRUE(post_to_srq(3).ok());
  EXPECT_EQ(completions(), Completed{});
}

TEST_F(SharedReceiveQueueTest, RejectsReceivesPostedToTheQueuePair) {
  connect_with_srq();
  EXPECT_EQ(post_receive(1, 10).error().code, EINVAL);
}

TEST_F(SharedReceiveQueueTest, RaisesTheLimitEventOnceAndDisarmsIt) {
  connect_with_srq();
  for (uint64_t id = 1; id <= 5; ++id) ASSERT_TRUE(post_to_srq(id).ok());
  ASSERT_TRUE(engine_.modify_srq(*srq_, {}, 4).ok());
  EXPECT_EQ(srq_->limit(), 4u);
  send_to(qp(), Opcode::RcSendOnly, 500, 1);
  EXPECT_EQ(events(), Events{});  // four are left, which is not below the limit
  send_to(qp(), Opcode::RcSendOnly, 501, 1);
  ASSERT_EQ(engine_.state().events.size(), 1u);
  EXPECT_EQ(engine_.state().events[0].srq, srq_);
  EXPECT_EQ(events(), Events{EventKind::SrqLimitReached});
  EXPECT_EQ(srq_->limit(), 0u);
  send_to(qp(), Opcode::RcSendOnly, 502, 1);
  EXPECT_EQ(events(), Events{});
}

TEST_F(SharedReceiveQueueTest, RaisesTheLimitEventAtOnceIfTheLimitIsAlreadyReached) {
  connect_with_srq();
  ASSERT_TRUE(post_to_srq(1).ok());
  ASSERT_TRUE(engine_.modify_srq(*srq_, {}, 1).ok());
  EXPECT_EQ(events(), Events{});
  ASSERT_TRUE(engine_.modify_srq(*srq_, {}, 2).ok());
  EXPECT_EQ(events(), Events{EventKind::SrqLimitReached});
}

TEST_F(SharedReceiveQueueTest, LimitZeroDisarmsTheEvent) {
  connect_with_srq();
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(post_to_srq(id).ok());
  ASSERT_TRUE(engine_.modify_srq(*srq_, {}, 2).ok());
  ASSERT_TRUE(engine_.modify_srq(*srq_, {}, 0).ok());
  send_to(qp(), Opcode::RcSendOnly, 500, 1);
  EXPECT_EQ(events(), Events{});
}

TEST_F(SharedReceiveQueueTest, RejectedChangesHaveNoEffect) {
  connect_with_srq(4);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(post_to_srq(id).ok());
  EXPECT_EQ(engine_.modify_srq(*srq_, {}, 5).error().code, EINVAL);
  EXPECT_EQ(engine_.modify_srq(*srq_, 2, {}).error().code, EINVAL);
  EXPECT_EQ(engine_.modify_srq(*srq_, 0, {}).error().code, EINVAL);
  EXPECT_EQ(engine_.modify_srq(*srq_, 3, 4).error().code, EINVAL);
  EXPECT_EQ(srq_->config().max_wr, 4u);
  EXPECT_EQ(srq_->limit(), 0u);
}

TEST_F(SharedReceiveQueueTest, GrowsAndShrinksWhileReceivesAreInUse) {
  connect_with_srq(2);
  ASSERT_TRUE(post_to_srq(1, 1024, 0).ok());
  ASSERT_TRUE(post_to_srq(2, 1024, 2048).ok());
  send_to(qp(), Opcode::RcSendFirst, 500, 256);
  ASSERT_TRUE(engine_.modify_srq(*srq_, 4, {}).ok());
  ASSERT_TRUE(post_to_srq(3).ok());
  ASSERT_TRUE(post_to_srq(4).ok());
  EXPECT_EQ(post_to_srq(5).error().code, ENOMEM);
  send_to(qp(), Opcode::RcSendLast, 501, 1);
  send_to(qp(), Opcode::RcSendOnly, 502, 1);
  send_to(qp(), Opcode::RcSendOnly, 503, 1);
  ASSERT_TRUE(engine_.modify_srq(*srq_, 1, {}).ok());
  EXPECT_EQ(post_to_srq(5).error().code, ENOMEM);
  send_to(qp(), Opcode::RcSendOnly, 504, 1);
  EXPECT_TRUE(post_to_srq(5).ok());
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success},
                                      {2, WcStatus::Success},
                                      {3, WcStatus::Success},
                                      {4, WcStatus::Success}}));
}

TEST_F(SharedReceiveQueueTest, NumbersAreNotZeroAndNotReused) {
  SharedReceiveQueue* a = engine_.create_srq({.pd = kPd, .max_wr = 1, .max_sges = 1});
  const uint32_t number = a->number();
  EXPECT_NE(number, 0u);
  EXPECT_LT(number, 1u << 24);
  engine_.destroy_srq(a);
  EXPECT_NE(engine_.create_srq({.pd = kPd, .max_wr = 1, .max_sges = 1})->number(), number);
}

TEST_F(SharedReceiveQueueTest, DestroyRemovesPendingEvents) {
  srq_ = engine_.create_srq({.pd = kPd, .max_wr = 1, .max_sges = 1});
  ASSERT_TRUE(engine_.modify_srq(*srq_, {}, 1).ok());
  engine_.destroy_srq(srq_);
  EXPECT_EQ(events(), Events{});
}

}  // namespace
}  // namespace verbena::core
