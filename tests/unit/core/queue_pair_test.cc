// Queue pairs of every transport: lists of work requests, times of completions, and overrun of a
// completion queue.
#include "core/queue_pair.h"

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

class QueuePairTest : public EngineTest {
 public:
  std::vector<SendRequest> writes(size_t count) {
    sge_ = {kIova, 8, key_};
    std::vector<SendRequest> list(count);
    for (size_t i = 0; i < count; ++i) {
      list[i].wr_id = i;
      list[i].op = SendOp::Write;
      list[i].flags = kSignaled;
      list[i].sges = {&sge_, 1};
    }
    return list;
  }
  Sge sge_;
};

TEST_F(QueuePairTest, PostsAWholeList) {
  connect();
  const auto list = writes(16);
  ASSERT_TRUE(engine_.post_send(qp(), list, now_).ok());
  EXPECT_EQ(transmit().size(), 16u);
}

TEST_F(QueuePairTest, UnpostsAListThatDoesNotFitOrIsInvalid) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 99, 8).ok());
  EXPECT_EQ(engine_.post_send(qp(), writes(16), now_).error().code, ENOMEM);
  auto bad_last = writes(8);
  bad_last.back().op = SendOp::FetchAdd;
  bad_last.back().remote_address = 1;
  EXPECT_EQ(engine_.post_send(qp(), bad_last, now_).error().code, EINVAL);
  EXPECT_EQ(transmit().size(), 1u);
  EXPECT_TRUE(engine_.post_send(qp(), writes(15), now_).ok());
  EXPECT_EQ(transmit().size(), 15u);
}

TEST_F(QueuePairTest, FlushesOrRefusesAListInTheErrorState) {
  connect();
  to_state(qp(), QpState::Error);
  EXPECT_EQ(engine_.post_send(qp(), writes(17), now_).error().code, ENOMEM);
  EXPECT_TRUE(completions().empty());
  ASSERT_TRUE(engine_.post_send(qp(), writes(2), now_).ok());
  EXPECT_EQ(completions(), (std::vector<std::pair<uint64_t, WcStatus>>{{0, WcStatus::Flushed},
                                                                       {1, WcStatus::Flushed}}));
}

TEST_F(QueuePairTest, CompletionsHaveTheTimeOfTheirTurn) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  transmit();
  now_ = Instant{123'456};
  receive_ack(100);
  auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].time, now_);

  ASSERT_TRUE(post_receive(2, 8).ok());
  now_ = Instant{234'567};
  receive(request(wire::Opcode::RcSendOnly, 500));
  done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].time, now_);

  ASSERT_TRUE(post_receive(3, 8).ok());
  now_ = Instant{345'678};
  to_state(qp(), QpState::Error);
  done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].time, now_);
}

class CqOverrunTest : public QueuePairTest {
 public:
  // Fills cq_ until room for count completions is left.
  void leave_room_for(uint32_t count) {
    for (; cq_.size() + count < cq_.capacity(); cq_.publish()) *cq_.next() = {};
  }
};

TEST_F(CqOverrunTest, FailsEveryQueuePairOfTheCq) {
  connect();
  QueuePair& neighbour = make_connected({});
  leave_room_for(1);
  ASSERT_TRUE(engine_.post_send(qp(), writes(2), now_).ok());
  transmit();
  receive_ack(101);
  EXPECT_EQ(qp().state(), QpState::Error);
  EXPECT_EQ(neighbour.state(), QpState::Error);
  EXPECT_EQ(events(), (std::vector{EventKind::CqError, EventKind::QpFatal, EventKind::QpFatal}));
  // The events are raised only once.
  ASSERT_TRUE(engine_.post_send(qp(), writes(2), now_).ok());
  EXPECT_TRUE(events().empty());
}

TEST_F(CqOverrunTest, AnIgnoredOverrunOnlyLosesCompletions) {
  connect();
  cq_.ignore_overrun();
  leave_room_for(1);
  ASSERT_TRUE(engine_.post_send(qp(), writes(3), now_).ok());
  transmit();
  receive_ack(102);
  EXPECT_EQ(qp().state(), QpState::Rts);
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(counter(CounterId::cq_overruns), 2u);
}

}  // namespace
}  // namespace verbena::core
