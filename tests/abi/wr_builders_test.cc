// ibv_create_qp_ex with send operations, and the ibv_wr_* interface.
#include <arpa/inet.h>

#include <cerrno>
#include <thread>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

constexpr uint64_t kRcOperations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                   IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                   IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |
                                   IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;

class Builders : public LoopbackTest {
 protected:
  void SetUp() override {
    LoopbackTest::SetUp();
    connect_extended(kRcOperations);
  }
  ibv_qp* create(uint64_t operations, ibv_qp_type type = IBV_QPT_RC, ibv_pd* pd = nullptr) {
    ibv_qp_init_attr_ex init{};
    init.send_cq = a_.cq.get();
    init.recv_cq = a_.receive_cq.get();
    init.qp_type = type;
    init.cap = {16, 16, 4, 4, 64};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = pd != nullptr ? pd : a_.pd.get();
    init.send_ops_flags = operations;
    return ibv_create_qp_ex(context_.get(), &init);
  }
  void connect_extended(uint64_t operations, ibv_pd* pd = nullptr) {
    a_.qp.reset(create(operations, IBV_QPT_RC, pd));
    ASSERT_NE(a_.qp, nullptr);
    ibv_qp_init_attr init = rc_attributes(b_.cq.get(), b_.receive_cq.get());
    b_.qp.reset(ibv_create_qp(b_.pd.get(), &init));
    for (Side* side : {&a_, &b_}) ASSERT_EQ(to_init(side->qp.get()), 0);
    ASSERT_EQ(to_rtr(a_.qp.get(), b_.qp->qp_num), 0);
    ASSERT_EQ(to_rtr(b_.qp.get(), a_.qp->qp_num), 0);
    ASSERT_EQ(to_rts(a_.qp.get()), 0);
    ASSERT_EQ(to_rts(b_.qp.get()), 0);
    x_ = ibv_qp_to_qp_ex(a_.qp.get());
    ASSERT_NE(x_, nullptr);
    x_->wr_flags = IBV_SEND_SIGNALED;
  }
  void set_sge(size_t offset, uint32_t length) {
    ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(offset), length);
  }
  ibv_wc done() { return wait_for_completion(a_.cq.get()); }
  void expect_nothing_posted() { EXPECT_EQ(completions_within_ms(a_.cq.get(), 20), 0); }

  ibv_qp_ex* x_ = nullptr;
};

TEST_F(Builders, QueuePairsWithoutSendOperationsHaveNoBuilders) {
  EXPECT_EQ(ibv_qp_to_qp_ex(b_.qp.get()), nullptr);
}

TEST_F(Builders, RejectsUnsupportedOperations) {
  EXPECT_EQ(create(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(create(uint64_t{1} << 40), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Builders, PostsSendsOfEveryKind) {
  std::memcpy(a_.memory.data(), "hello", 5);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(b_.receive(i, i * 64, 64), 0);
  ibv_wr_start(x_);
  x_->wr_id = 1;
  ibv_wr_send(x_);
  set_sge(0, 5);
  x_->wr_id = 2;
  ibv_wr_send_imm(x_, htonl(0x01020304));
  const ibv_sge list[] = {a_.sge(0, 2), a_.sge(3, 2)};
  ibv_wr_set_sge_list(x_, 2, list);
  x_->wr_id = 3;
  ibv_wr_send(x_);
  char word[] = "inline";
  ibv_wr_set_inline_data(x_, word, 6);
  word[0] = 'X';  // it was copied
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  for (uint64_t i = 1; i <= 3; ++i) {
    const ibv_wc wc = done();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.opcode, IBV_WC_SEND);
  }
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, 5u);
  const ibv_wc second = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(second.byte_len, 4u);
  EXPECT_EQ(second.imm_data, htonl(0x01020304));
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, 6u);
  EXPECT_EQ(std::memcmp(b_.memory.data(), "hello", 5), 0);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 64, "helo", 4), 0);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 128, "inline", 6), 0);
}

TEST_F(Builders, PostsRdmaAndAtomics) {
  std::memcpy(a_.memory.data(), "0123456789", 10);
  uint64_t counter = 40;
  std::memcpy(b_.memory.data() + 512, &counter, 8);
  ASSERT_EQ(b_.receive(7, 0, 8), 0);
  ibv_wr_start(x_);
  ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address(256));
  set_sge(0, 10);
  ibv_wr_rdma_write_imm(x_, b_.mr->rkey, b_.address(300), htonl(9));
  ibv_data_buf buffers[] = {
      {a_.memory.data(), 3}, {a_.memory.data() + 5, 0}, {a_.memory.data() + 7, 3}};
  ibv_wr_set_inline_data_list(x_, 3, buffers);
  ibv_wr_rdma_read(x_, b_.mr->rkey, b_.address(256));
  set_sge(1024, 10);
  ibv_wr_atomic_fetch_add(x_, b_.mr->rkey, b_.address(512), 2);
  set_sge(2048, 8);
  ibv_wr_atomic_cmp_swp(x_, b_.mr->rkey, b_.address(512), 42, 7);
  set_sge(2056, 8);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  const ibv_wc_opcode opcodes[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ,
                                   IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP};
  for (const ibv_wc_opcode opcode : opcodes) {
    const ibv_wc wc = done();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, opcode);
  }
  EXPECT_EQ(std::memcmp(b_.memory.data() + 256, "0123456789", 10), 0);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 300, "012789", 6), 0);
  EXPECT_EQ(std::memcmp(a_.memory.data() + 1024, "0123456789", 10), 0);
  uint64_t seen[2];
  std::memcpy(seen, a_.memory.data() + 2048, 16);
  EXPECT_EQ(seen[0], 40u);
  EXPECT_EQ(seen[1], 42u);
  std::memcpy(&counter, b_.memory.data() + 512, 8);
  EXPECT_EQ(counter, 7u);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).imm_data, htonl(9));
}

TEST_F(Builders, BindsAndInvalidatesWindows) {
  MwPtr window(ibv_alloc_mw(a_.pd.get(), IBV_MW_TYPE_2));
  ASSERT_NE(window, nullptr);
  const uint32_t rkey = ibv_inc_rkey(window->rkey);
  const ibv_mw_bind_info info{a_.mr.get(), a_.address(), 64, IBV_ACCESS_REMOTE_WRITE};
  ibv_wr_start(x_);
  ibv_wr_bind_mw(x_, window.get(), rkey, &info);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  ibv_wc wc = done();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
  ibv_wr_start(x_);
  ibv_wr_local_inv(x_, rkey);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  wc = done();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
}

TEST_F(Builders, SendWithInvalidateUnbindsAWindowOfThePeer) {
  MwPtr window(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_2));
  const uint32_t rkey = ibv_inc_rkey(window->rkey);
  ibv_send_wr bind{};
  bind.opcode = IBV_WR_BIND_MW;
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_mw.mw = window.get();
  bind.bind_mw.rkey = rkey;
  bind.bind_mw.bind_info = {b_.mr.get(), b_.address(), 64, IBV_ACCESS_REMOTE_WRITE};
  ASSERT_EQ(b_.send(bind), 0);
  ASSERT_EQ(wait_for_completion(b_.cq.get()).status, IBV_WC_SUCCESS);
  ASSERT_EQ(b_.receive(1, 0, 8), 0);
  ibv_wr_start(x_);
  ibv_wr_send_inv(x_, rkey);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  EXPECT_EQ(done().status, IBV_WC_SUCCESS);
  const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_INV, unsigned{IBV_WC_WITH_INV});
  EXPECT_EQ(wc.invalidated_rkey, rkey);
}

TEST_F(Builders, AbortDiscardsTheList) {
  ibv_wr_start(x_);
  ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address());
  set_sge(0, 8);
  ibv_wr_abort(x_);
  expect_nothing_posted();
  ibv_wr_start(x_);
  EXPECT_EQ(ibv_wr_complete(x_), 0);  // an empty list is valid
  expect_nothing_posted();
}

// One invalid request rejects the whole list.
TEST_F(Builders, AnInvalidRequestRejectsTheWholeList) {
  const auto post_between_valid_requests = [&](const std::function<void()>& bad) {
    ibv_wr_start(x_);
    ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address());
    set_sge(0, 8);
    bad();
    // Later requests do not change the result.
    ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address());
    set_sge(0, 8);
    return ibv_wr_complete(x_);
  };
  const auto write = [&] { ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address()); };
  EXPECT_EQ(post_between_valid_requests([&] {
              write();
              const ibv_sge many[5] = {};
              ibv_wr_set_sge_list(x_, 5, many);
            }),
            EINVAL);
  EXPECT_EQ(post_between_valid_requests([&] {
              write();
              ibv_wr_set_inline_data(x_, a_.memory.data(), 65);
            }),
            ENOMEM);
  EXPECT_EQ(post_between_valid_requests([&] {
              write();
              ibv_data_buf list[] = {{a_.memory.data(), 60}, {a_.memory.data(), SIZE_MAX}};
              ibv_wr_set_inline_data_list(x_, 2, list);
            }),
            ENOMEM);
  EXPECT_EQ(post_between_valid_requests([&] {
              ibv_wr_rdma_read(x_, b_.mr->rkey, b_.address());
              ibv_wr_set_inline_data(x_, a_.memory.data(), 8);
            }),
            EINVAL);
  EXPECT_EQ(post_between_valid_requests([&] {
              ibv_wr_atomic_fetch_add(x_, b_.mr->rkey, b_.address(1), 1);
              set_sge(0, 8);
            }),
            EINVAL);
  EXPECT_EQ(post_between_valid_requests([&] { ibv_wr_bind_mw(x_, nullptr, 0, nullptr); }), EINVAL);
  MwPtr type1(ibv_alloc_mw(a_.pd.get(), IBV_MW_TYPE_1));
  const ibv_mw_bind_info zero_based{a_.mr.get(), a_.address(), 64,
                                    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED};
  EXPECT_EQ(post_between_valid_requests([&] { ibv_wr_bind_mw(x_, type1.get(), 1, &zero_based); }),
            EINVAL);
  EXPECT_EQ(post_between_valid_requests([&] { ibv_wr_send_tso(x_, nullptr, 0, 0); }), EOPNOTSUPP);
  EXPECT_EQ(post_between_valid_requests([&] {
              for (int i = 0; i < 20; ++i) write();
            }),
            ENOMEM);
  expect_nothing_posted();
  // The queue is unchanged: exactly max_send_wr requests fit.
  ibv_wr_start(x_);
  for (int i = 0; i < 16; ++i) {
    write();
    set_sge(0, 8);
  }
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(done().status, IBV_WC_SUCCESS);
}

TEST_F(Builders, AFullQueueRejectsTheWholeList) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;  // so that nothing completes
  ASSERT_EQ(ibv_modify_qp(a_.qp.get(), &attr, IBV_QP_STATE), 0);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  for (int i = 0; i < 15; ++i) ASSERT_EQ(a_.send(wr), 0);
  ibv_wr_start(x_);
  for (int i = 0; i < 2; ++i) {
    ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address());
    set_sge(0, 8);
  }
  EXPECT_EQ(ibv_wr_complete(x_), ENOMEM);
  attr.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(ibv_modify_qp(a_.qp.get(), &attr, IBV_QP_STATE), 0);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(done().status, IBV_WC_SUCCESS);
  expect_nothing_posted();
}

TEST_F(Builders, RejectsOperationsNotRequestedAtCreation) {
  connect_extended(IBV_QP_EX_WITH_SEND);
  ibv_wr_start(x_);
  ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address());
  set_sge(0, 8);
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  expect_nothing_posted();
}

TEST_F(Builders, RejectsCallsInTheWrongOrder) {
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  ibv_wr_abort(x_);
  ibv_wr_send(x_);
  set_sge(0, 8);
  ibv_wr_start(x_);
  set_sge(0, 8);  // without a request
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  ibv_wr_start(x_);
  ibv_wr_start(x_);
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  expect_nothing_posted();
}

TEST_F(Builders, RejectsOrFlushesRequestsInTheWrongState) {
  QpPtr fresh(create(kRcOperations));
  ibv_qp_ex* x = ibv_qp_to_qp_ex(fresh.get());
  ibv_wr_start(x);
  ibv_wr_send(x);
  EXPECT_EQ(ibv_wr_complete(x), EINVAL);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(a_.qp.get(), &attr, IBV_QP_STATE), 0);
  ibv_wr_start(x_);
  ibv_wr_send(x_);
  ibv_wr_send(x_);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  EXPECT_EQ(done().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(done().status, IBV_WC_WR_FLUSH_ERR);
}

// The program may make any call between start and complete.
TEST_F(Builders, AStartedListDoesNotBlockOtherCalls) {
  ibv_wr_start(x_);
  ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address());
  set_sge(0, 8);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 64);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(done().wr_id, 77u);
  PdPtr pd(ibv_alloc_pd(context_.get()));
  MrPtr mr(ibv_reg_mr(pd.get(), a_.memory.data(), 64, 0));
  x_->wr_id = 5;
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  EXPECT_EQ(done().status, IBV_WC_SUCCESS);
}

TEST_F(Builders, ThreadsCanBuildListsInTurn) {
  constexpr int kRounds = 500;
  // The posting threads also make progress, maybe before a completion is polled: all completions
  // must fit.
  ASSERT_EQ(ibv_resize_cq(a_.cq.get(), 2 * kRounds), 0);
  const auto work = [&] {
    for (int i = 0; i < kRounds;) {
      ibv_wr_start(x_);
      x_->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address());
      set_sge(0, 8);
      const int code = ibv_wr_complete(x_);
      if (code == 0) {
        ++i;
      } else {
        EXPECT_EQ(code,
                  ENOMEM);  // the next try follows at once and must not block the other thread
      }
    }
  };
  std::thread one(work), two(work);
  for (int i = 0; i < 2 * kRounds; ++i) EXPECT_EQ(done().status, IBV_WC_SUCCESS);
  one.join();
  two.join();
}

// Several threads may use the queue pair, one at a time.
TEST_F(Builders, AnotherThreadMayCompleteAListUnderAThreadDomain) {
  a_.qp.reset();
  b_.qp.reset();
  ibv_td_init_attr td_init{};
  ibv_parent_domain_init_attr init{};
  init.pd = a_.pd.get();
  init.td = ibv_alloc_td(context_.get(), &td_init);
  ASSERT_NE(init.td, nullptr);
  PdPtr parent(ibv_alloc_parent_domain(context_.get(), &init));
  ASSERT_NE(parent, nullptr);
  connect_extended(kRcOperations, parent.get());
  for (int i = 0; i < 2; ++i) {
    ibv_wr_start(x_);
    ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address());
    set_sge(0, 8);
    std::thread([&] { EXPECT_EQ(ibv_wr_complete(x_), 0); }).join();
    EXPECT_EQ(done().status, IBV_WC_SUCCESS);
  }
  a_.qp.reset();
  parent.reset();
  EXPECT_EQ(ibv_dealloc_td(init.td), 0);
}

}  // namespace
}  // namespace verbena::test
