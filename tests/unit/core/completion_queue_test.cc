// The completion ring.
#include "core/completion_queue.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

using Unpolled = CompletionQueue::Unpolled;

class CompletionQueueTest : public testing::Test {
 public:
  bool push(uint64_t wr_id, bool solicited = false, WcStatus status = WcStatus::Success) {
    Completion c;
    c.wr_id = wr_id;
    c.solicited = solicited;
    c.status = status;
    notify_ = false;
    return push(c);
  }
  bool push(const Completion& c) {
    Completion* const place = cq_.next();
    if (place == nullptr) return false;
    *place = c;
    notify_ = cq_.publish();
    return true;
  }
  uint64_t pop() {
    Completion c;
    return cq_.poll(&c, 1) == 1 ? c.wr_id : ~uint64_t{0};
  }
  bool resize(uint32_t capacity) {
    auto ring = CompletionQueue::make_ring(capacity);
    return cq_.resize(capacity, ring);
  }
  CompletionQueue cq_{5};
  bool notify_ = false;
};

TEST_F(CompletionQueueTest, IsFifoAcrossTheEndOfTheRing) {
  uint64_t in = 0, out = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 1 + round % 5; ++i) ASSERT_TRUE(push(in++));
    while (!cq_.empty()) EXPECT_EQ(pop(), out++);
  }
  EXPECT_EQ(in, out);
}

TEST_F(CompletionQueueTest, HoldsExactlyItsCapacity) {
  for (uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(push(i));
  EXPECT_FALSE(cq_.overrun());
  EXPECT_FALSE(push(5));
  EXPECT_TRUE(cq_.overrun());
  Completion all[8];
  EXPECT_EQ(cq_.poll(all, 8), 5u);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(all[i].wr_id, i);  // nothing was overwritten
}

TEST_F(CompletionQueueTest, RaisesNoEventUnlessArmed) {
  push(1, true);
  EXPECT_FALSE(notify_);
}

TEST_F(CompletionQueueTest, ArmedForAnyCompletionRaisesOneEvent) {
  cq_.arm(Armed::Any);
  push(1);
  EXPECT_TRUE(notify_);
  push(2);
  EXPECT_FALSE(notify_);
}

TEST_F(CompletionQueueTest, ArmedForSolicitedRaisesAnEventForASolicitedCompletionOrAnError) {
  cq_.arm(Armed::Solicited);
  push(1);
  EXPECT_FALSE(notify_);
  push(2, true);
  EXPECT_TRUE(notify_);
  cq_.arm(Armed::Solicited);
  push(3, false, WcStatus::Flushed);
  EXPECT_TRUE(notify_);
}

TEST_F(CompletionQueueTest, ArmingForSolicitedDoesNotReplaceArmingForAny) {
  cq_.arm(Armed::Any);
  cq_.arm(Armed::Solicited);
  push(1);
  EXPECT_TRUE(notify_);
  cq_.arm(Armed::Solicited);
  cq_.arm(Armed::Any);
  push(2);
  EXPECT_TRUE(notify_);
}

TEST_F(CompletionQueueTest, ArmingWithAnUnpolledCompletionRaisesNoEventAtOnce) {
  push(1, true);
  EXPECT_EQ(cq_.arm(Armed::Any), Unpolled::Unannounced);
  EXPECT_FALSE(notify_);
  EXPECT_EQ(pop(), 1u);  // the application polls after arming and finds the completion
  EXPECT_FALSE(cq_.take_late_event());
}

TEST_F(CompletionQueueTest, CompletionStillUnpolledAfterArmingRaisesOneLateEvent) {
  push(1);
  ASSERT_EQ(cq_.arm(Armed::Any), Unpolled::Unannounced);
  EXPECT_TRUE(cq_.take_late_event());
  EXPECT_FALSE(cq_.take_late_event());
  push(2);
  EXPECT_FALSE(notify_);
}

TEST_F(CompletionQueueTest, ArmingAnEmptyQueueCausesNoLateEvent) {
  EXPECT_EQ(cq_.arm(Armed::Any), Unpolled::None);
  push(1);
  pop();
  EXPECT_EQ(cq_.arm(Armed::Any), Unpolled::None);
  EXPECT_FALSE(cq_.take_late_event());
}

TEST_F(CompletionQueueTest, ArmingReportsWhetherUnpolledCompletionsWereAnnounced) {
  cq_.arm(Armed::Any);
  push(1);
  ASSERT_TRUE(notify_);
  EXPECT_EQ(cq_.arm(Armed::Any), Unpolled::Announced);
  push(2);  // raises the event of this arming
  ASSERT_TRUE(notify_);
  push(3);
  EXPECT_EQ(cq_.arm(Armed::Any), Unpolled::Unannounced) << "no event was raised for the third";
}

TEST_F(CompletionQueueTest, CompletionsLeftBehindByAPollCountAsUnannounced) {
  push(1);
  ASSERT_EQ(cq_.arm(Armed::Any), Unpolled::Unannounced);
  push(2);
  ASSERT_TRUE(notify_);
  pop();  // the first, and not the second
  EXPECT_EQ(cq_.arm(Armed::Any), Unpolled::Unannounced);
  EXPECT_TRUE(cq_.take_late_event());
}

TEST_F(CompletionQueueTest, EventOfANewCompletionReplacesTheLateEvent) {
  push(1);
  ASSERT_EQ(cq_.arm(Armed::Any), Unpolled::Unannounced);
  push(2);
  ASSERT_TRUE(notify_);
  EXPECT_FALSE(cq_.take_late_event());
}

TEST_F(CompletionQueueTest, OnlySolicitedCompletionsAndErrorsCauseALateEventWhenArmedForSolicited) {
  cq_.arm(Armed::Solicited);
  push(1);
  EXPECT_EQ(cq_.arm(Armed::Solicited), Unpolled::None);
  push(2, true);
  ASSERT_TRUE(notify_);
  push(3);
  EXPECT_EQ(cq_.arm(Armed::Solicited), Unpolled::Announced);
  cq_.arm(Armed::Any);
  push(4);
  push(5, false, WcStatus::Flushed);
  EXPECT_EQ(cq_.arm(Armed::Solicited), Unpolled::Unannounced);
}

TEST_F(CompletionQueueTest, ResizeKeepsUnpolledCompletions) {
  for (uint64_t i = 0; i < 7; ++i) {  // move the ring's start off zero
    push(i);
    pop();
  }
  for (uint64_t i = 10; i < 14; ++i) push(i);
  EXPECT_FALSE(resize(3));
  EXPECT_EQ(cq_.capacity(), 5u);
  ASSERT_TRUE(resize(4));
  EXPECT_FALSE(push(14));
  ASSERT_TRUE(resize(100));
  for (uint64_t i = 20; i < 100; ++i) EXPECT_TRUE(push(i));
  for (uint64_t i = 10; i < 14; ++i) EXPECT_EQ(pop(), i);
  for (uint64_t i = 20; i < 100; ++i) EXPECT_EQ(pop(), i);
  EXPECT_TRUE(cq_.empty());
}

TEST_F(CompletionQueueTest, RemovesCompletionsOfOneQueuePairAndKeepsTheOrderOfTheRest) {
  const auto push_of = [&](uint64_t wr_id, uint32_t qpn) {
    Completion c;
    c.wr_id = wr_id;
    c.qpn = wire::Qpn(qpn);
    return push(c);
  };
  for (uint64_t round = 0; round < 20; ++round) {  // at every position of the ring
    for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(push_of(i, i % 2 == 0 ? 7 : 8));
    cq_.forget(wire::Qpn(9));
    EXPECT_EQ(cq_.size(), 5u);
    cq_.forget(wire::Qpn(7));
    EXPECT_EQ(cq_.size(), 2u);
    ASSERT_TRUE(push_of(5, 7));  // the queue has room again
    EXPECT_EQ(pop(), 1u);
    EXPECT_EQ(pop(), 3u);
    EXPECT_EQ(pop(), 5u);
    cq_.forget(wire::Qpn(7));
    EXPECT_TRUE(cq_.empty());
    push_of(0, 7);
    pop();  // shifts the next round by one
  }
}

}  // namespace
}  // namespace verbena::core
