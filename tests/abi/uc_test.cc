// Unreliable connections through the verbs interface.
#include <arpa/inet.h>

#include <cerrno>
#include <numeric>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

class UcTest : public LoopbackTest {
 protected:
  void SetUp() override {
    context_ = open_loopback();
    ASSERT_NE(context_, nullptr);
    for (Side* side : {&a_, &b_}) {
      make_side(*side);
      ibv_qp_init_attr init = rc_attributes(side->cq.get(), side->receive_cq.get());
      init.qp_type = IBV_QPT_UC;
      side->qp.reset(ibv_create_qp(side->pd.get(), &init));
      ASSERT_NE(side->qp, nullptr);
      ASSERT_EQ(to_init(side->qp.get()), 0);
    }
    ASSERT_EQ(uc_to_rts(a_.qp.get(), b_.qp->qp_num), 0);
    ASSERT_EQ(uc_to_rts(b_.qp.get(), a_.qp->qp_num), 0);
  }
};

TEST_F(UcTest, SendsAndWrites) {
  std::iota(a_.memory.begin(), a_.memory.begin() + 50'000, uint8_t{3});
  ASSERT_EQ(b_.receive(1, 0, 60'000), 0);
  ibv_sge sge = a_.sge(0, 50'000);
  ibv_send_wr wr = rdma(IBV_WR_SEND_WITH_IMM, &sge, b_, 0);
  wr.imm_data = htonl(6);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 50'000u);
  EXPECT_EQ(wc.imm_data, htonl(6));
  EXPECT_EQ(std::memcmp(a_.memory.data(), b_.memory.data(), 50'000), 0);

  ASSERT_EQ(b_.receive(2, 0, 0), 0);
  wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 100'000);
  ASSERT_EQ(a_.send(wr), 0);
  wr = rdma(IBV_WR_RDMA_WRITE_WITH_IMM, &sge, b_, 200'000);
  ASSERT_EQ(a_.send(wr), 0);
  wc = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(std::memcmp(a_.memory.data(), &b_.memory[100'000], 50'000), 0);
  EXPECT_EQ(std::memcmp(a_.memory.data(), &b_.memory[200'000], 50'000), 0);
}

TEST_F(UcTest, MessagesThatThePeerDropsCauseNoError) {
  ibv_sge sge = a_.sge(0, 5000);
  ibv_send_wr wr = rdma(IBV_WR_SEND, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);  // the peer has no receive posted
  wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  wr.wr.rdma.rkey ^= 0x100;
  ASSERT_EQ(a_.send(wr), 0);  // wrong key
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(completions_within_ms(b_.receive_cq.get(), 20), 0);
  ASSERT_EQ(b_.receive(1, 0, 8000), 0);
  wr = rdma(IBV_WR_SEND, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, 5000u);
}

TEST_F(UcTest, RejectsReadsAndAtomics) {
  ibv_sge sge = a_.sge(0, 8);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                     IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_SEND_WITH_INV}) {
    ibv_send_wr wr = rdma(opcode, &sge, b_, 0);
    EXPECT_EQ(a_.send(wr), EINVAL) << opcode;
  }
}

TEST_F(UcTest, LosesNothingOnAnIdleLoopback) {
  constexpr uint32_t kBytes = 200'000;
  ibv_sge sge = a_.sge(0, kBytes);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 4; ++i) ASSERT_EQ(b_.receive(1, 0, kBytes), 0);
    for (int i = 0; i < 4; ++i) {
      ibv_send_wr wr = rdma(IBV_WR_SEND, &sge, b_, 0);
      ASSERT_EQ(a_.send(wr), 0);
    }
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
      ASSERT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
    }
  }
}

}  // namespace
}  // namespace verbena::test
