// The ibv_wr_* interface of UC and UD queue pairs. For XRC see xrc_test.cc.
#include <arpa/inet.h>

#include <cerrno>

#include "tests/abi/datagram_support.h"

namespace verbena::test {
namespace {

constexpr uint64_t kSends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
constexpr uint64_t kUcOperations = kSends | IBV_QP_EX_WITH_RDMA_WRITE |
                                   IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV |
                                   IBV_QP_EX_WITH_BIND_MW;

ibv_qp* create_extended(const Side& side, ibv_qp_type type, uint64_t operations) {
  ibv_qp_init_attr_ex init{};
  init.send_cq = side.cq.get();
  init.recv_cq = side.receive_cq.get();
  init.qp_type = type;
  init.cap = {16, 16, 4, 4, 64};
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = side.pd.get();
  init.send_ops_flags = operations;
  return ibv_create_qp_ex(side.pd->context, &init);
}

class UcBuilders : public LoopbackTest {
 protected:
  void SetUp() override {
    context_ = open_loopback();
    ASSERT_NE(context_, nullptr);
    make_side(a_);
    make_side(b_);
    a_.qp.reset(create_extended(a_, IBV_QPT_UC, kUcOperations));
    ibv_qp_init_attr init = rc_attributes(b_.cq.get(), b_.receive_cq.get());
    init.qp_type = IBV_QPT_UC;
    b_.qp.reset(ibv_create_qp(b_.pd.get(), &init));
    for (Side* side : {&a_, &b_}) {
      ASSERT_NE(side->qp, nullptr);
      ASSERT_EQ(to_init(side->qp.get(), IBV_ACCESS_REMOTE_WRITE), 0);
    }
    ASSERT_EQ(uc_to_rts(a_.qp.get(), b_.qp->qp_num), 0);
    ASSERT_EQ(uc_to_rts(b_.qp.get(), a_.qp->qp_num), 0);
    x_ = ibv_qp_to_qp_ex(a_.qp.get());
    ASSERT_NE(x_, nullptr);
    x_->wr_flags = IBV_SEND_SIGNALED;
  }
  ibv_qp_ex* x_ = nullptr;
};

TEST_F(UcBuilders, PostsSendsAndWrites) {
  std::memcpy(a_.memory.data(), "0123456789", 10);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(b_.receive(i, i * 64, 64), 0);
  ibv_wr_start(x_);
  ibv_wr_rdma_write(x_, b_.mr->rkey, b_.address(1000));
  ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(), 10);
  ibv_wr_send(x_);
  char word[] = "inline";
  ibv_wr_set_inline_data(x_, word, 6);
  ibv_wr_send_imm(x_, htonl(7));
  const ibv_sge list[] = {a_.sge(0, 2), a_.sge(8, 2)};
  ibv_wr_set_sge_list(x_, 2, list);
  ibv_wr_rdma_write_imm(x_, b_.mr->rkey, b_.address(2000), htonl(8));
  ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(), 4);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  for (const ibv_wc_opcode opcode :
       {IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE}) {
    const ibv_wc wc = wait_for_completion(a_.cq.get());
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, opcode);
  }
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, 6u);
  ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(wc.byte_len, 4u);
  EXPECT_EQ(wc.imm_data, htonl(7));
  wc = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.imm_data, htonl(8));
  EXPECT_EQ(std::memcmp(b_.memory.data() + 1000, "0123456789", 10), 0);
  EXPECT_EQ(std::memcmp(b_.memory.data(), "inline", 6), 0);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 64, "0189", 4), 0);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 2000, "0123", 4), 0);
}

TEST_F(UcBuilders, BindsAndInvalidatesWindows) {
  const MwPtr window(ibv_alloc_mw(a_.pd.get(), IBV_MW_TYPE_2));
  ASSERT_NE(window, nullptr);
  const uint32_t rkey = ibv_inc_rkey(window->rkey);
  const ibv_mw_bind_info info{a_.mr.get(), a_.address(), 64, IBV_ACCESS_REMOTE_WRITE};
  ibv_wr_start(x_);
  ibv_wr_bind_mw(x_, window.get(), rkey, &info);
  ibv_wr_local_inv(x_, rkey);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).opcode, IBV_WC_BIND_MW);
  const ibv_wc wc = wait_for_completion(a_.cq.get());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
}

// Operations that the transport lacks are rejected when the queue pair is created.
TEST_F(UcBuilders, RejectsOperationsThatTheTransportLacks) {
  for (const uint64_t operation : {IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
                                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE,
                                   IBV_QP_EX_WITH_SEND_WITH_INV}) {
    for (const ibv_qp_type type : {IBV_QPT_UC, IBV_QPT_UD}) {
      errno = 0;
      EXPECT_EQ(create_extended(a_, type, kSends | operation), nullptr) << operation;
      EXPECT_EQ(errno, EOPNOTSUPP);
    }
  }
  for (const uint64_t operation : {IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_BIND_MW}) {
    errno = 0;
    EXPECT_EQ(create_extended(a_, IBV_QPT_UD, operation), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
}

class UdBuilders : public DatagramTest {
 protected:
  void SetUp() override {
    DatagramTest::SetUp();
    a_.qp.reset(create_extended(a_, IBV_QPT_UD, kSends));
    ASSERT_NE(a_.qp, nullptr);
    ASSERT_EQ(datagram_to_rts(a_.qp.get()), 0);
    x_ = ibv_qp_to_qp_ex(a_.qp.get());
    ASSERT_NE(x_, nullptr);
    x_->wr_flags = IBV_SEND_SIGNALED;
    ibv_ah_attr to = address();
    ah_.reset(ibv_create_ah(a_.pd.get(), &to));
    ASSERT_NE(ah_, nullptr);
  }
  ibv_qp_ex* x_ = nullptr;
  AhPtr ah_;
};

TEST_F(UdBuilders, SendsEachDatagramToItsAddress) {
  const QpPtr other = make_ud(b_);
  ASSERT_NE(other, nullptr);
  ASSERT_EQ(b_.receive(1, 0, 200), 0);
  ibv_sge room = b_.sge(500, 200);
  ibv_recv_wr receive{2, nullptr, &room, 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(other.get(), &receive, &bad), 0);
  std::memcpy(a_.memory.data(), "hello", 5);
  ibv_wr_start(x_);
  ibv_wr_send(x_);
  ibv_wr_set_ud_addr(x_, ah_.get(), b_.qp->qp_num, kQkey);
  ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(), 5);
  ibv_wr_send_imm(x_, htonl(42));
  char word[] = "inline";
  ibv_wr_set_inline_data(x_, word, 6);
  ibv_wr_set_ud_addr(x_, ah_.get(), other->qp_num, kQkey);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  for (int i = 0; i < 2; ++i) {
    const ibv_wc wc = wait_for_completion(a_.cq.get());
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_SEND);
  }
  for (int i = 0; i < 2; ++i) {  // of two queue pairs, in either order
    const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.src_qp, a_.qp->qp_num);
    if (wc.wr_id == 1) {
      EXPECT_EQ(wc.qp_num, b_.qp->qp_num);
      EXPECT_EQ(wc.byte_len, kHeaderArea + 5);
    } else {
      EXPECT_EQ(wc.qp_num, other->qp_num);
      EXPECT_EQ(wc.byte_len, kHeaderArea + 6);
      EXPECT_EQ(wc.imm_data, htonl(42));
    }
  }
  EXPECT_EQ(std::memcmp(b_.memory.data() + kHeaderArea, "hello", 5), 0);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 500 + kHeaderArea, "inline", 6), 0);
}

TEST_F(UdBuilders, RejectsDatagramsWithoutAnAddress) {
  ibv_wr_start(x_);
  ibv_wr_send(x_);
  ibv_wr_set_ud_addr(x_, ah_.get(), b_.qp->qp_num, kQkey);
  ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(), 5);
  ibv_wr_send(x_);  // the address before belongs to the other request
  ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(), 5);
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  ibv_wr_start(x_);
  ibv_wr_send(x_);
  ibv_wr_set_ud_addr(x_, nullptr, b_.qp->qp_num, kQkey);
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  ibv_wr_start(x_);
  ibv_wr_set_ud_addr(x_, ah_.get(), b_.qp->qp_num, kQkey);  // without a request
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  ibv_wr_start(x_);
  ibv_wr_send(x_);
  ibv_wr_set_ud_addr(x_, ah_.get(), b_.qp->qp_num, kQkey);
  ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(), 1 << 16);  // longer than a packet
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  EXPECT_EQ(completions_within_ms(a_.cq.get(), 20), 0);
}

}  // namespace
}  // namespace verbena::test
