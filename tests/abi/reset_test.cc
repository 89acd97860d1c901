// RESET removes the unpolled completions of the queue pair.
#include <fcntl.h>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

using SrqPtr = std::unique_ptr<ibv_srq, Destroy<ibv_destroy_srq>>;

class Reset : public LoopbackTest {
 protected:
  static void change_state(ibv_qp* qp, ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
  }
  static int poll(ibv_cq* cq) {
    ibv_wc wc[16];
    return ibv_poll_cq(cq, 16, wc);
  }
  QpPtr make_qp(ibv_cq* send_cq, ibv_cq* receive_cq, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr init = rc_attributes(send_cq, receive_cq);
    init.srq = srq;
    return QpPtr(ibv_create_qp(b_.pd.get(), &init));
  }
  int post_receive(ibv_qp* qp, uint64_t wr_id) {
    ibv_sge sge = b_.sge(0, 64);
    ibv_recv_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }
};

TEST_F(Reset, DropsCompletionsOfSendsAndReceives) {
  ASSERT_EQ(b_.receive(1, 0, 64), 0);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_SEND, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  ASSERT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  // The receive completed before the ACK left; the next two requests are flushed.
  change_state(b_.qp.get(), IBV_QPS_ERR);
  ASSERT_EQ(b_.receive(2, 0, 64), 0);
  wr = rdma(IBV_WR_RDMA_WRITE, &sge, a_, 0);
  ASSERT_EQ(b_.send(wr), 0);
  change_state(b_.qp.get(), IBV_QPS_RESET);
  EXPECT_EQ(poll(b_.cq.get()), 0);
  EXPECT_EQ(poll(b_.receive_cq.get()), 0);
}

TEST_F(Reset, KeepsTheCompletionsOfOtherQueuePairsInOrder) {
  const CqPtr cq(ibv_create_cq(context_.get(), 16, nullptr, nullptr, 0));
  const QpPtr reset = make_qp(cq.get(), cq.get()), other = make_qp(cq.get(), cq.get());
  for (ibv_qp* qp : {reset.get(), other.get()}) {
    ASSERT_EQ(to_init(qp), 0);
    change_state(qp, IBV_QPS_ERR);
  }
  // In the error state a receive is flushed when it is posted.
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_EQ(post_receive(i % 2 == 0 ? reset.get() : other.get(), i), 0);
  }
  change_state(reset.get(), IBV_QPS_RESET);
  ibv_wc wc[16];
  ASSERT_EQ(ibv_poll_cq(cq.get(), 16, wc), 4);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(wc[i].qp_num, other->qp_num);
    EXPECT_EQ(wc[i].wr_id, 2 * i + 1);
  }
}

TEST_F(Reset, DropsCompletionsOfReceivesFromASharedQueue) {
  ibv_srq_init_attr attr{};
  attr.attr = {16, 1, 0};
  const SrqPtr srq(ibv_create_srq(b_.pd.get(), &attr));
  ASSERT_NE(srq, nullptr);
  b_.qp = make_qp(b_.cq.get(), b_.receive_cq.get(), srq.get());
  a_.qp.reset();
  ibv_qp_init_attr init = rc_attributes(a_.cq.get(), a_.receive_cq.get());
  a_.qp.reset(ibv_create_qp(a_.pd.get(), &init));
  ASSERT_EQ(to_init(a_.qp.get()), 0);
  ASSERT_EQ(to_init(b_.qp.get()), 0);
  ASSERT_EQ(to_rtr(a_.qp.get(), b_.qp->qp_num), 0);
  ASSERT_EQ(to_rtr(b_.qp.get(), a_.qp->qp_num), 0);
  ASSERT_EQ(to_rts(a_.qp.get()), 0);
  ibv_sge sge = b_.sge(0, 64);
  ibv_recv_wr receive{};
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_srq_recv(srq.get(), &receive, &bad), 0);
  ibv_sge from = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_SEND, &from, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  ASSERT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  change_state(b_.qp.get(), IBV_QPS_RESET);
  EXPECT_EQ(poll(b_.receive_cq.get()), 0);
  b_.qp.reset();
}

TEST_F(Reset, DropsCompletionsOfXrcSends) {
  const CqPtr cq(ibv_create_cq(context_.get(), 16, nullptr, nullptr, 0));
  ibv_qp_init_attr init = rc_attributes(cq.get(), nullptr);
  init.qp_type = IBV_QPT_XRC_SEND;
  const QpPtr qp(ibv_create_qp(a_.pd.get(), &init));
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(to_init(qp.get()), 0);
  change_state(qp.get(), IBV_QPS_ERR);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(qp.get(), &wr, &bad), 0);
  change_state(qp.get(), IBV_QPS_RESET);
  EXPECT_EQ(poll(cq.get()), 0);
}

// The event stays, as with a kernel driver, and wakes the program without effect. The channel still
// works.
TEST_F(Reset, KeepsTheEventOfADroppedCompletion) {
  const CqPtr cq(ibv_create_cq(context_.get(), 16, nullptr, b_.channel.get(), 0));
  const QpPtr qp = make_qp(cq.get(), cq.get());
  const auto flush_one = [&] {
    ASSERT_EQ(to_init(qp.get()), 0);
    change_state(qp.get(), IBV_QPS_ERR);
    ASSERT_EQ(ibv_req_notify_cq(cq.get(), 0), 0);
    ASSERT_EQ(post_receive(qp.get(), 1), 0);
    ibv_cq* which = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(b_.channel.get(), &which, &context), 0);
    EXPECT_EQ(which, cq.get());
    ibv_ack_cq_events(cq.get(), 1);
  };
  fcntl(b_.channel->fd, F_SETFL, fcntl(b_.channel->fd, F_GETFL) | O_NONBLOCK);
  flush_one();
  change_state(qp.get(), IBV_QPS_RESET);
  EXPECT_EQ(poll(cq.get()), 0);
  flush_one();
  EXPECT_EQ(poll(cq.get()), 1);
}

}  // namespace
}  // namespace verbena::test
