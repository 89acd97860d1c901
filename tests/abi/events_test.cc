// Completion channels, solicited events, asynchronous events, acknowledgement of events, and
// resizing.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

class Events : public LoopbackTest {
 protected:
  static bool readable(int fd, int timeout_ms = 0) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, timeout_ms) == 1;
  }
  static void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }
  void write_byte(unsigned flags = 0) {
    ibv_sge sge = a_.sge(0, 1);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    wr.send_flags |= flags;
    ASSERT_EQ(a_.send(wr), 0);
  }
  // Gives b's receive CQ a channel, for solicited events.
  void use_receive_channel_of_b() {
    b_.qp.reset();
    b_.receive_cq.reset(ibv_create_cq(context_.get(), 64, this, b_.channel.get(), 0));
    a_.qp.reset();
    connect();
  }
  void send_byte(unsigned flags = 0) {
    ASSERT_EQ(b_.receive(1, 0, 8), 0);
    ibv_sge sge = a_.sge(0, 1);
    ibv_send_wr wr = rdma(IBV_WR_SEND, &sge, b_, 0);
    wr.send_flags |= flags;
    ASSERT_EQ(a_.send(wr), 0);
    ASSERT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  }
};

// A hardware NIC sends the ACK before its program sees the message. In one CQ the sender's
// completion is therefore before that of the reply. Programs such as tgtd depend on this.
TEST_F(Events, SendCompletesBeforeTheReplyIsReceived) {
  use_receive_channel_of_b();
  a_.qp.reset();
  ibv_qp_init_attr both = rc_attributes(a_.cq.get(), a_.cq.get());
  a_.qp.reset(ibv_create_qp(a_.pd.get(), &both));
  b_.qp.reset();
  ibv_qp_init_attr separate_queues = rc_attributes(b_.cq.get(), b_.receive_cq.get());
  b_.qp.reset(ibv_create_qp(b_.pd.get(), &separate_queues));
  for (auto [side, peer] : {std::pair{&a_, &b_}, std::pair{&b_, &a_}}) {
    ASSERT_EQ(to_init(side->qp.get()), 0);
    ASSERT_EQ(to_rtr(side->qp.get(), peer->qp->qp_num), 0);
    ASSERT_EQ(to_rts(side->qp.get()), 0);
  }
  for (int round = 0; round < 50; ++round) {
    ASSERT_EQ(ibv_req_notify_cq(b_.receive_cq.get(), 0), 0);
    ASSERT_EQ(b_.receive(1, 0, 64), 0);
    ASSERT_EQ(a_.receive(2, 64, 64), 0);
    ibv_sge sge = a_.sge(0, 32);
    ibv_send_wr wr = rdma(IBV_WR_SEND, &sge, b_, 0);
    wr.wr_id = 1;
    ASSERT_EQ(a_.send(wr), 0);
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(b_.channel.get(), &cq, &context), 0);
    ibv_ack_cq_events(cq, 1);
    ASSERT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
    sge = b_.sge(128, 32);
    wr = rdma(IBV_WR_SEND, &sge, a_, 0);
    ASSERT_EQ(b_.send(wr), 0);
    ASSERT_EQ(wait_for_completion(a_.cq.get()).wr_id, 1u) << "round " << round;
    ASSERT_EQ(wait_for_completion(a_.cq.get()).wr_id, 2u) << "round " << round;
    ASSERT_EQ(wait_for_completion(b_.cq.get()).status, IBV_WC_SUCCESS);
  }
}

TEST_F(Events, RaisesOneEventPerArming) {
  set_nonblocking(a_.channel->fd);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  write_byte();  // not armed
  wait_for_completion(a_.cq.get());
  EXPECT_EQ(ibv_get_cq_event(a_.channel.get(), &cq, &context), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(readable(a_.channel->fd));

  ASSERT_EQ(ibv_req_notify_cq(a_.cq.get(), 0), 0);
  write_byte();
  ASSERT_TRUE(readable(a_.channel->fd, 5000));
  ASSERT_EQ(ibv_get_cq_event(a_.channel.get(), &cq, &context), 0);
  EXPECT_EQ(cq, a_.cq.get());
  EXPECT_EQ(context, &a_);
  EXPECT_FALSE(readable(a_.channel->fd));
  ibv_ack_cq_events(cq, 1);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  write_byte();  // the CQ is no longer armed
  wait_for_completion(a_.cq.get());
  EXPECT_FALSE(readable(a_.channel->fd, 20));
}

// UCX arms the CQ while UD endpoints connect, and sleeps without another poll.
TEST_F(Events, ArmingWithAnUnpolledCompletionRaisesAnEvent) {
  use_receive_channel_of_b();
  for (const int solicited_only : {0, 1}) {
    send_byte(IBV_SEND_SOLICITED);  // complete at the sender, so the completion is in the
                                    // receiver's queue
    ASSERT_EQ(ibv_req_notify_cq(b_.receive_cq.get(), solicited_only), 0);
    ASSERT_TRUE(readable(b_.channel->fd, 5000));
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(b_.channel.get(), &cq, &context), 0);
    EXPECT_EQ(cq, b_.receive_cq.get());
    ibv_ack_cq_events(cq, 1);
    EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
    EXPECT_FALSE(readable(b_.channel->fd, 20)) << "one event per arming";
  }
}

TEST_F(Events, PollingAfterArmingCausesNoEvent) {
  use_receive_channel_of_b();
  send_byte();
  ASSERT_EQ(ibv_req_notify_cq(b_.receive_cq.get(), 0), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_FALSE(readable(b_.channel->fd, 20));
}

TEST_F(Events, BlockingGetWaitsForAnEvent) {
  ASSERT_EQ(ibv_req_notify_cq(a_.cq.get(), 0), 0);
  std::thread waiter([&] {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    EXPECT_EQ(ibv_get_cq_event(a_.channel.get(), &cq, &context), 0);
    EXPECT_EQ(cq, a_.cq.get());
    ibv_ack_cq_events(cq, 1);
  });
  write_byte();
  waiter.join();
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(Events, ArmedForSolicitedIgnoresOtherCompletions) {
  use_receive_channel_of_b();
  set_nonblocking(b_.channel->fd);
  ASSERT_EQ(ibv_req_notify_cq(b_.receive_cq.get(), 1), 0);
  send_byte();
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_FALSE(readable(b_.channel->fd, 20));
  send_byte(IBV_SEND_SOLICITED);
  ASSERT_TRUE(readable(b_.channel->fd, 5000));
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(b_.channel.get(), &cq, &context), 0);
  EXPECT_EQ(cq, b_.receive_cq.get());
  ibv_ack_cq_events(cq, 1);
  wait_for_completion(b_.receive_cq.get());
}

TEST_F(Events, ArmedForSolicitedReportsErrors) {
  use_receive_channel_of_b();
  ASSERT_EQ(b_.receive(1, 0, 8), 0);
  ASSERT_EQ(ibv_req_notify_cq(b_.receive_cq.get(), 1), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(b_.qp.get(), &attr, IBV_QP_STATE), 0);
  EXPECT_TRUE(readable(b_.channel->fd, 5000));
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_WR_FLUSH_ERR);
}

// In the error state a posted receive is flushed within the call, and a sleeping thread must wake
// up.
TEST_F(Events, FlushOfALateReceiveRaisesAnEvent) {
  use_receive_channel_of_b();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(b_.qp.get(), &attr, IBV_QP_STATE), 0);
  ASSERT_EQ(ibv_req_notify_cq(b_.receive_cq.get(), 0), 0);
  ASSERT_EQ(b_.receive(1, 0, 8), 0);
  EXPECT_TRUE(readable(b_.channel->fd, 5000));
}

TEST_F(Events, DestroyWaitsForTheAcknowledgementOfEvents) {
  CqPtr cq(ibv_create_cq(context_.get(), 16, nullptr, a_.channel.get(), 0));
  ibv_qp_init_attr init = rc_attributes(cq.get(), cq.get());
  ibv_qp* qp = ibv_create_qp(a_.pd.get(), &init);
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(to_init(qp), 0);
  ibv_sge sge = a_.sge(0, 8);
  ibv_recv_wr wr{1, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
  ASSERT_EQ(ibv_req_notify_cq(cq.get(), 0), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
  ibv_cq* event_cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(a_.channel.get(), &event_cq, &context), 0);
  ASSERT_EQ(event_cq, cq.get());
  ASSERT_EQ(ibv_destroy_qp(qp), 0);

  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    cq.reset();
    destroyed = true;
  });
  EXPECT_FALSE(within_ms(50, [&] { return destroyed.load(); }));
  ibv_ack_cq_events(event_cq, 1);
  destroyer.join();
  EXPECT_TRUE(destroyed);
}

// Destroying a queue removes its unread events.
TEST_F(Events, DestroyRemovesUnreadEvents) {
  set_nonblocking(a_.channel->fd);
  ASSERT_EQ(ibv_req_notify_cq(a_.cq.get(), 0), 0);
  write_byte();
  ASSERT_TRUE(readable(a_.channel->fd, 5000));
  a_.qp.reset();
  a_.cq.reset();
  EXPECT_FALSE(readable(a_.channel->fd));
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  EXPECT_EQ(ibv_get_cq_event(a_.channel.get(), &cq, &context), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(Events, AsyncDescriptorCanBePolled) {
  EXPECT_FALSE(readable(context_->async_fd));
  set_nonblocking(context_->async_fd);
  ibv_async_event event{};
  EXPECT_EQ(ibv_get_async_event(context_.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(Events, SqdRaisesSendQueueDrained) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(a_.qp.get(), &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  const ibv_async_event event = wait_for_async_event(context_.get());
  EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
  EXPECT_EQ(event.element.qp, a_.qp.get());
  expect_destroy_waits_for_ack(event, [&] { a_.qp.reset(); });
}

TEST_F(Events, ResizeKeepsUnpolledCompletions) {
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(context_.get(), &device), 0);
  // A SEND completes after the receiver has completed it, so ten completions are unpolled now.
  for (int i = 0; i < 10; ++i) send_byte();
  ibv_cq* cq = b_.receive_cq.get();
  EXPECT_EQ(ibv_resize_cq(cq, 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(cq, device.max_cqe + 1), EINVAL);
  EXPECT_EQ(ibv_resize_cq(cq, 9), EINVAL);
  EXPECT_EQ(cq->cqe, 256);
  EXPECT_EQ(ibv_resize_cq(cq, 10), 0);
  EXPECT_EQ(cq->cqe, 10);
  EXPECT_EQ(ibv_resize_cq(cq, 5000), 0);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(wait_for_completion(cq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(completions_within_ms(cq, 10), 0);
}

TEST_F(Events, PollOfNoEntriesReturnsZero) {
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(a_.cq.get(), 0, &wc), 0);
  EXPECT_EQ(ibv_poll_cq(a_.cq.get(), -1, &wc), 0);
}

}  // namespace
}  // namespace verbena::test
