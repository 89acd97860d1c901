// Shared receive queues through the verbs interface.
#include <poll.h>

#include <atomic>
#include <set>
#include <thread>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

using SrqPtr = std::unique_ptr<ibv_srq, Destroy<ibv_destroy_srq>>;

class Srq : public LoopbackTest {
 protected:
  void SetUp() override {
    LoopbackTest::SetUp();
    srq_ = make_srq(b_, 64);
    ASSERT_NE(srq_, nullptr);
    a_.qp.reset();
    b_.qp.reset();
  }
  void TearDown() override {
    a_.qp.reset();
    b_.qp.reset();
    srq_.reset();
  }

  static SrqPtr make_srq(const Side& side, uint32_t max_wr) {
    ibv_srq_init_attr init{};
    init.attr = {max_wr, 2, 0};
    return SrqPtr(ibv_create_srq(side.pd.get(), &init));
  }

  QpPtr make_qp(const Side& side, ibv_srq* srq) {
    ibv_qp_init_attr init = rc_attributes(side.cq.get(), side.receive_cq.get());
    init.srq = srq;
    return QpPtr(ibv_create_qp(side.pd.get(), &init));
  }

  // a_.qp sends, b_.qp consumes receives of the SRQ.
  void connect_shared() {
    a_.qp = make_qp(a_, nullptr);
    b_.qp = make_qp(b_, srq_.get());
    ASSERT_NE(a_.qp, nullptr);
    ASSERT_NE(b_.qp, nullptr);
    join(a_.qp.get(), b_.qp.get());
  }

  static void join(ibv_qp* one, ibv_qp* other) {
    ASSERT_EQ(to_init(one), 0);
    ASSERT_EQ(to_init(other), 0);
    ASSERT_EQ(to_rtr(one, other->qp_num), 0);
    ASSERT_EQ(to_rtr(other, one->qp_num), 0);
    ASSERT_EQ(to_rts(one), 0);
    ASSERT_EQ(to_rts(other), 0);
  }

  int post_to_srq(uint64_t wr_id, uint32_t length = 64) {
    ibv_sge piece = b_.sge(0, length);
    ibv_recv_wr wr{wr_id, nullptr, &piece, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(srq_.get(), &wr, &bad);
  }

  int send(ibv_qp* qp, uint32_t length = 64) {
    ibv_sge piece = a_.sge(0, length);
    ibv_send_wr wr{};
    wr.wr_id = 7;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }

  bool event_pending(int ms) {
    pollfd fd{context_->async_fd, POLLIN, 0};
    return ::poll(&fd, 1, ms) == 1;
  }
  ibv_async_event next_event() {
    ibv_async_event event{};
    EXPECT_TRUE(event_pending(5000)) << "no event within 5 seconds";
    if (event_pending(0)) {
      EXPECT_EQ(ibv_get_async_event(context_.get(), &event), 0);
    }
    return event;
  }
  // Skips COMM_EST events.
  ibv_async_event next_event_after_connect() {
    for (;;) {
      ibv_async_event event = next_event();
      if (event.event_type != IBV_EVENT_COMM_EST) return event;
      ibv_ack_async_event(&event);
    }
  }

  SrqPtr srq_;
};

TEST_F(Srq, ChecksAndReportsSizes) {
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(context_.get(), &device), 0);
  EXPECT_GT(device.max_srq, 0);
  EXPECT_NE(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE, 0u);
  ibv_srq_init_attr init{};
  init.attr.max_wr = static_cast<uint32_t>(device.max_srq_wr);
  init.attr.max_sge = static_cast<uint32_t>(device.max_srq_sge);
  const SrqPtr largest(ibv_create_srq(b_.pd.get(), &init));
  ASSERT_NE(largest, nullptr);
  EXPECT_EQ(init.attr.max_wr, static_cast<uint32_t>(device.max_srq_wr));
  init.attr.max_wr = static_cast<uint32_t>(device.max_srq_wr) + 1;
  EXPECT_EQ(ibv_create_srq(b_.pd.get(), &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
  init.attr.max_wr = 1;
  init.attr.max_sge = static_cast<uint32_t>(device.max_srq_sge) + 1;
  EXPECT_EQ(ibv_create_srq(b_.pd.get(), &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
  init.attr = {0, 0, 0};
  const SrqPtr smallest(ibv_create_srq(b_.pd.get(), &init));
  ASSERT_NE(smallest, nullptr);
  EXPECT_GE(init.attr.max_wr, 1u);
  EXPECT_GE(init.attr.max_sge, 1u);
}

TEST_F(Srq, ExtendedCallChecksItsArguments) {
  ibv_srq_init_attr_ex init{};
  init.attr = {8, 1, 0};
  init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  init.pd = b_.pd.get();
  init.srq_type = IBV_SRQT_BASIC;
  const SrqPtr basic(ibv_create_srq_ex(context_.get(), &init));
  ASSERT_NE(basic, nullptr);
  uint32_t number = 0, other = 0;
  EXPECT_EQ(ibv_get_srq_num(basic.get(), &number), 0);
  EXPECT_EQ(ibv_get_srq_num(srq_.get(), &other), 0);
  EXPECT_NE(number, other);
  const auto refused_with = [&] {
    EXPECT_EQ(ibv_create_srq_ex(context_.get(), &init), nullptr);
    return errno;
  };
  init.srq_type = IBV_SRQT_TM;
  EXPECT_EQ(refused_with(), EOPNOTSUPP);
  init.srq_type = no_such<ibv_srq_type>(17);
  EXPECT_EQ(refused_with(), EINVAL);
  init.srq_type = IBV_SRQT_XRC;
  EXPECT_EQ(refused_with(), EINVAL);  // neither domain nor completion queue
  init.srq_type = IBV_SRQT_TM;
  init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
  EXPECT_EQ(refused_with(), EINVAL);
  init.comp_mask = IBV_SRQ_INIT_ATTR_PD | 1u << 20;
  EXPECT_EQ(refused_with(), EINVAL);
}

TEST_F(Srq, QueuePairReportsItsSrqAndHasNoReceiveQueue) {
  connect_shared();
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(b_.qp.get(), &attr, IBV_QP_CAP, &init), 0);
  EXPECT_EQ(init.srq, srq_.get());
  EXPECT_EQ(b_.qp->srq, srq_.get());
  EXPECT_EQ(attr.cap.max_recv_wr, 0u);
  EXPECT_EQ(b_.receive(1, 0, 8), EINVAL);
}

TEST_F(Srq, RejectsDestroyOfObjectsInUse) {
  connect_shared();
  EXPECT_EQ(ibv_destroy_srq(srq_.get()), EBUSY);
  const PdPtr unshared(ibv_alloc_pd(context_.get()));
  ibv_srq_init_attr init{};
  init.attr = {1, 1, 0};
  const SrqPtr srq(ibv_create_srq(unshared.get(), &init));
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(unshared.get()), EBUSY);
}

TEST_F(Srq, RejectsAnSrqOfAnotherContext) {
  const ContextPtr other = open_loopback();
  const PdPtr pd(ibv_alloc_pd(other.get()));
  ibv_srq_init_attr init{};
  init.attr = {1, 1, 0};
  const SrqPtr foreign(ibv_create_srq(pd.get(), &init));
  ASSERT_NE(foreign, nullptr);
  EXPECT_EQ(make_qp(b_, foreign.get()), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Srq, PostsTheReceivesBeforeAnInvalidOne) {
  ibv_sge piece = b_.sge(0, 8);
  ibv_sge three[3] = {piece, piece, piece};
  ibv_recv_wr second{2, nullptr, three, 3};
  ibv_recv_wr first{1, &second, &piece, 1};
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(srq_.get(), &first, &bad), EINVAL);
  EXPECT_EQ(bad, &second);
  second.num_sge = -1;
  EXPECT_EQ(ibv_post_srq_recv(srq_.get(), &second, &bad), EINVAL);
  int posted = 1;
  while (post_to_srq(1) == 0) ++posted;
  EXPECT_EQ(posted, 64);
  EXPECT_EQ(post_to_srq(1), ENOMEM);
}

TEST_F(Srq, SenderWaitsForAReceive) {
  connect_shared();
  ASSERT_EQ(send(a_.qp.get()), 0);
  EXPECT_EQ(completions_within_ms(b_.receive_cq.get(), 20), 0);
  ASSERT_EQ(post_to_srq(5), 0);
  const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.qp_num, b_.qp->qp_num);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(Srq, RaisesTheLimitEventOnce) {
  connect_shared();
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(post_to_srq(i), 0);
  ibv_srq_attr attr{};
  attr.srq_limit = 65;
  EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_LIMIT), EINVAL);
  EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, 1 << 5), EINVAL);
  attr.srq_limit = 3;
  ASSERT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(ibv_query_srq(srq_.get(), &attr), 0);
  EXPECT_EQ(attr.srq_limit, 3u);
  EXPECT_EQ(attr.max_wr, 64u);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(send(a_.qp.get()), 0);
    wait_for_completion(b_.receive_cq.get());
  }
  ibv_async_event event = next_event_after_connect();
  EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(event.element.srq, srq_.get());
  ASSERT_EQ(ibv_query_srq(srq_.get(), &attr), 0);
  EXPECT_EQ(attr.srq_limit, 0u);
  EXPECT_FALSE(event_pending(50));

  // The SRQ cannot be destroyed before the event is acknowledged.
  b_.qp.reset();
  std::atomic<bool> acknowledged = false;
  std::thread destroyer([&] {
    EXPECT_EQ(ibv_destroy_srq(srq_.release()), 0);
    EXPECT_TRUE(acknowledged);
  });
  EXPECT_FALSE(event_pending(50));
  acknowledged = true;
  ibv_ack_async_event(&event);
  destroyer.join();
}

TEST_F(Srq, RaisesTheLimitEventAtOnceIfTheLimitIsAlreadyReached) {
  ibv_srq_attr attr{};
  attr.srq_limit = 1;
  ASSERT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_LIMIT), 0);
  ibv_async_event event = next_event();
  EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  ibv_ack_async_event(&event);
}

TEST_F(Srq, ResizesAndKeepsReceives) {
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(post_to_srq(i), 0);
  ibv_srq_attr attr{};
  attr.max_wr = 2;
  EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_MAX_WR), EINVAL);
  attr.max_wr = 1u << 20;
  EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_MAX_WR), EINVAL);
  attr.max_wr = 200;
  ASSERT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_MAX_WR), 0);
  for (uint64_t i = 3; i < 200; ++i) ASSERT_EQ(post_to_srq(i), 0);
  EXPECT_EQ(post_to_srq(200), ENOMEM);
  connect_shared();
  for (uint64_t i = 0; i < 200; ++i) {
    ASSERT_EQ(send(a_.qp.get()), 0);
    EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).wr_id, i);
    wait_for_completion(a_.cq.get());
  }
}

TEST_F(Srq, FailureRaisesLastWqeReached) {
  connect_shared();
  ASSERT_EQ(post_to_srq(1, 16), 0);
  ASSERT_EQ(post_to_srq(2, 16), 0);
  ASSERT_EQ(send(a_.qp.get(), 17), 0);
  const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_INV_REQ_ERR);
  std::set<int> kinds;
  for (int i = 0; i < 2; ++i) {
    ibv_async_event event = next_event_after_connect();
    EXPECT_EQ(event.element.qp, b_.qp.get());
    kinds.insert(event.event_type);
    ibv_ack_async_event(&event);
  }
  EXPECT_EQ(kinds, (std::set<int>{IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}));
  EXPECT_EQ(completions_within_ms(b_.receive_cq.get(), 20), 0);  // the other receive stays

  const QpPtr sender = make_qp(a_, nullptr), receiver = make_qp(b_, srq_.get());
  join(sender.get(), receiver.get());
  ASSERT_EQ(send(sender.get(), 16), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).wr_id, 2u);
}

TEST_F(Srq, TransitionToErrorRaisesLastWqeReached) {
  connect_shared();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(b_.qp.get(), &attr, IBV_QP_STATE), 0);
  ibv_async_event event = next_event_after_connect();
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event.element.qp, b_.qp.get());
  ibv_ack_async_event(&event);
}

TEST_F(Srq, DestroyRemovesCompletionsOfTheQueuePair) {
  connect_shared();
  const QpPtr sender = make_qp(a_, nullptr);
  QpPtr receiver = make_qp(b_, srq_.get());
  join(sender.get(), receiver.get());
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(post_to_srq(i), 0);
  for (ibv_qp* qp : {sender.get(), a_.qp.get(), sender.get()}) {
    ASSERT_EQ(send(qp), 0);
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  }
  receiver.reset();
  const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.qp_num, b_.qp->qp_num);
  EXPECT_EQ(completions_within_ms(b_.receive_cq.get(), 20), 0);
}

TEST_F(Srq, ServesThousandsOfQueuePairs) {
#if defined(__SANITIZE_THREAD__)
  constexpr int kPairs = 300;  // it is many times slower
#else
  constexpr int kPairs = 1500;
#endif
  const CqPtr send_cq(ibv_create_cq(context_.get(), 2 * kPairs, nullptr, nullptr, 0));
  const CqPtr receive_cq(ibv_create_cq(context_.get(), 2 * kPairs, nullptr, nullptr, 0));
  constexpr uint32_t kReceives = 256;  // fewer than messages, so some messages wait
  const SrqPtr shared = make_srq(b_, kReceives);
  ASSERT_NE(shared, nullptr);
  const auto post_to_shared = [&] {
    ibv_sge piece = b_.sge(0, 64);
    ibv_recv_wr wr{0, nullptr, &piece, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(shared.get(), &wr, &bad);
  };
  for (uint32_t i = 0; i < kReceives; ++i) ASSERT_EQ(post_to_shared(), 0);

  std::vector<QpPtr> senders, receivers;
  for (int i = 0; i < kPairs; ++i) {
    ibv_qp_init_attr init = rc_attributes(send_cq.get(), receive_cq.get());
    init.cap = {1, 1, 1, 1, 0};
    senders.emplace_back(ibv_create_qp(a_.pd.get(), &init));
    ibv_qp_init_attr shares = rc_attributes(send_cq.get(), receive_cq.get());
    shares.cap = {1, 0, 1, 0, 0};
    shares.srq = shared.get();
    receivers.emplace_back(ibv_create_qp(b_.pd.get(), &shares));
    ASSERT_NE(senders.back(), nullptr);
    ASSERT_NE(receivers.back(), nullptr);
    join(senders.back().get(), receivers.back().get());
    ASSERT_FALSE(HasFatalFailure());
  }
  for (const QpPtr& qp : senders) ASSERT_EQ(send(qp.get()), 0);
  std::set<uint32_t> receivers_seen;
  for (int i = 0; i < kPairs; ++i) {
    const ibv_wc wc = wait_for_completion(receive_cq.get());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    receivers_seen.insert(wc.qp_num);
    ASSERT_EQ(post_to_shared(), 0);
  }
  EXPECT_EQ(receivers_seen.size(), size_t{kPairs});
  for (int i = 0; i < kPairs; ++i) {
    ASSERT_EQ(wait_for_completion(send_cq.get()).status, IBV_WC_SUCCESS);
  }
}

}  // namespace
}  // namespace verbena::test
