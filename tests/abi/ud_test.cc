// Datagrams and address handles through the verbs interface.
#include <arpa/inet.h>

#include <cerrno>
#include <numeric>

#include "tests/abi/datagram_support.h"

namespace verbena::test {
namespace {

bool is_empty(const ibv_gid& gid) {
  return gid.global.interface_id == 0 && gid.global.subnet_prefix == 0;
}

class UdTest : public DatagramTest {
 protected:
  void round_trip(int gid_index);
};

// Sends to an address from the GID table, and replies to the address in the completion.
void UdTest::round_trip(int gid_index) {
  ibv_ah_attr attr = address(gid_index);
  const AhPtr ah(ibv_create_ah(a_.pd.get(), &attr));
  ASSERT_NE(ah, nullptr);
  std::iota(a_.memory.begin(), a_.memory.begin() + 1000, uint8_t{1});
  ASSERT_EQ(b_.receive(1, 0, 2000), 0);
  ibv_sge sge = a_.sge(0, 1000);
  ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.imm_data = htonl(77);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.byte_len, kHeaderArea + 1000);
  EXPECT_EQ(wc.src_qp, a_.qp->qp_num);
  EXPECT_EQ(wc.qp_num, b_.qp->qp_num);
  EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_GRH | IBV_WC_WITH_IMM));
  EXPECT_EQ(wc.imm_data, htonl(77));
  EXPECT_EQ(wc.pkey_index, 0);
  EXPECT_EQ(wc.slid, 0);
  EXPECT_EQ(wc.sl, gid_index == 0 ? 2 : 1);  // UCX finds the IP version here
  EXPECT_EQ(std::memcmp(&b_.memory[kHeaderArea], a_.memory.data(), 1000), 0);

  auto* const grh = reinterpret_cast<ibv_grh*>(b_.memory.data());
  ibv_ah_attr back{};
  ASSERT_EQ(ibv_init_ah_from_wc(context_.get(), 1, &wc, grh, &back), 0);
  EXPECT_EQ(back.is_global, 1);
  EXPECT_EQ(back.sl, 0);
  EXPECT_EQ(back.grh.sgid_index, gid_index);
  EXPECT_EQ(back.grh.hop_limit, 9);
  EXPECT_EQ(back.grh.traffic_class, 0x20);
  EXPECT_EQ(std::memcmp(&back.grh.dgid, &attr.grh.dgid, 16), 0);  // both ends are the same address

  const AhPtr reply_ah(ibv_create_ah_from_wc(b_.pd.get(), &wc, grh, 1));
  ASSERT_NE(reply_ah, nullptr);
  ASSERT_EQ(a_.receive(2, 4000, 100), 0);
  ibv_sge some = b_.sge(0, 60);
  ibv_send_wr reply = datagram(&some, reply_ah.get(), wc.src_qp);
  ASSERT_EQ(b_.send(reply), 0);
  EXPECT_EQ(wait_for_completion(b_.cq.get()).status, IBV_WC_SUCCESS);
  wc = wait_for_completion(a_.receive_cq.get());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, kHeaderArea + 60);
}

TEST_F(UdTest, SendsAndRepliesOverIpv4) { round_trip(0); }

TEST_F(UdTest, SendsAndRepliesOverIpv6) {
  ibv_gid gid{};
  ASSERT_EQ(ibv_query_gid(context_.get(), 1, 1, &gid), 0);
  if (is_empty(gid)) GTEST_SKIP() << "the loopback interface has no IPv6 address";
  round_trip(1);
}

TEST_F(UdTest, SendsInlineDataAndSeveralSges) {
  ibv_ah_attr attr = address();
  const AhPtr ah(ibv_create_ah(a_.pd.get(), &attr));
  ASSERT_EQ(b_.receive(1, 0, 200), 0);
  ASSERT_EQ(b_.receive(2, 200, 200), 0);
  char text[] = "inline";
  ibv_sge plain{reinterpret_cast<uint64_t>(text), 6, 0};
  ibv_send_wr wr = datagram(&plain, ah.get(), b_.qp->qp_num);
  wr.send_flags |= IBV_SEND_INLINE;
  ASSERT_EQ(a_.send(wr), 0);
  std::memcpy(a_.memory.data(), "apiece", 6);
  ibv_sge sges[] = {a_.sge(0, 1), a_.sge(1, 5)};
  wr = datagram(sges, ah.get(), b_.qp->qp_num);
  wr.num_sge = 2;
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, kHeaderArea + 6);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, kHeaderArea + 6);
  EXPECT_EQ(std::memcmp(&b_.memory[kHeaderArea], "inline", 6), 0);
  EXPECT_EQ(std::memcmp(&b_.memory[200 + kHeaderArea], "apiece", 6), 0);
}

TEST_F(UdTest, DropsDatagramsThatDoNotFitOrHaveAWrongQkey) {
  ibv_ah_attr attr = address();
  const AhPtr ah(ibv_create_ah(a_.pd.get(), &attr));
  ASSERT_EQ(b_.receive(1, 0, kHeaderArea + 7), 0);
  b_.memory[kHeaderArea + 7] = 0xEE;
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
  ASSERT_EQ(a_.send(wr), 0);  // one byte too long
  wr.wr.ud.remote_qkey = kQkey + 1;
  sge.length = 4;
  ASSERT_EQ(a_.send(wr), 0);  // wrong Q_Key
  wr.wr.ud.remote_qkey =
      0x80000000;  // selects the sender's own Q_Key, which is also the receiver's
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, kHeaderArea + 4);
  ASSERT_EQ(a_.send(wr), 0);  // no receive is left
  EXPECT_EQ(completions_within_ms(b_.receive_cq.get(), 50), 0);
  EXPECT_EQ(b_.memory[kHeaderArea + 7], 0xEE);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  }
}

TEST_F(UdTest, RejectsInvalidRequests) {
  ibv_ah_attr attr = address();
  const AhPtr ah(ibv_create_ah(a_.pd.get(), &attr));
  const AhPtr foreign(ibv_create_ah(b_.pd.get(), &attr));
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
  const uint32_t mtu = 128u << port.active_mtu;
  ibv_sge sge = a_.sge(0, mtu + 1);
  ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
  EXPECT_EQ(a_.send(wr), EINVAL);
  sge.length = 8;
  wr.wr.ud.ah = foreign.get();
  EXPECT_EQ(a_.send(wr), EINVAL);
  wr.wr.ud.ah = nullptr;
  EXPECT_EQ(a_.send(wr), EINVAL);
  wr.wr.ud.ah = ah.get();
  wr.opcode = IBV_WR_RDMA_WRITE;
  EXPECT_EQ(a_.send(wr), EINVAL);
  EXPECT_EQ(completions_within_ms(a_.cq.get(), 10), 0);
  wr.opcode = IBV_WR_SEND;
  sge.length = mtu;
  EXPECT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(UdTest, RejectsInvalidAddressHandles) {
  const auto refused = [&](auto change) {
    ibv_ah_attr attr = address();
    change(attr);
    errno = 0;
    EXPECT_EQ(ibv_create_ah(a_.pd.get(), &attr), nullptr);
    EXPECT_EQ(errno, EINVAL);
  };
  refused([](ibv_ah_attr& a) { a.is_global = 0; });
  refused([](ibv_ah_attr& a) { a.port_num = 2; });
  refused([](ibv_ah_attr& a) { a.grh.sgid_index = 120; });
  refused([](ibv_ah_attr& a) { a.grh.dgid = {}; });
  refused([](ibv_ah_attr& a) { a.grh.dgid.raw[0] = 0x20; });  // IPv6 from an IPv4 address
  ibv_wc wc{};
  ibv_grh grh{};
  EXPECT_EQ(ibv_create_ah_from_wc(a_.pd.get(), &wc, &grh, 1), nullptr);
  wc.wc_flags = IBV_WC_GRH;
  EXPECT_EQ(ibv_create_ah_from_wc(a_.pd.get(), &wc, &grh, 1), nullptr);
}

TEST_F(UdTest, RejectsDeallocOfAPdWithAddressHandles) {
  PdPtr pd(ibv_alloc_pd(context_.get()));
  ibv_ah_attr attr = address();
  AhPtr ah(ibv_create_ah(pd.get(), &attr));
  ASSERT_NE(ah, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd.get()), EBUSY);
  ah.reset();
}

// Pacing delays most datagrams until their handle is destroyed. They must not go to the address of
// the next handle.
TEST_F(UdTest, PostedDatagramsKeepTheirAddressAfterTheHandleIsDestroyed) {
  constexpr int kCount = 500;
  ibv_qp_init_attr init = datagram_attributes(a_);
  init.cap.max_send_wr = kCount;
  init.sq_sig_all = 0;
  const QpPtr sender(ibv_create_qp(a_.pd.get(), &init));
  ASSERT_NE(sender, nullptr);
  ASSERT_EQ(datagram_to_rts(sender.get()), 0);
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
  ASSERT_EQ(b_.receive(1, 0, (128u << port.active_mtu) + kHeaderArea), 0);

  const ibv_ah_attr here = address();
  ibv_ah_attr elsewhere = here;
  elsewhere.grh.dgid.raw[15] = 99;  // no process listens on 127.0.0.99
  AhPtr ah(ibv_create_ah(a_.pd.get(), &elsewhere));
  ASSERT_NE(ah, nullptr);
  ibv_sge sge = a_.sge(0, 128u << port.active_mtu);
  ibv_send_wr* bad = nullptr;
  for (int i = 1; i <= kCount; ++i) {
    ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
    wr.send_flags = i == kCount ? IBV_SEND_SIGNALED : 0;
    ASSERT_EQ(ibv_post_send(sender.get(), &wr, &bad), 0);
  }
  ah.reset();
  ibv_ah_attr attr = here;
  ah.reset(ibv_create_ah(a_.pd.get(), &attr));
  ASSERT_NE(ah, nullptr);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(completions_within_ms(b_.receive_cq.get(), 50), 0);

  sge.length = 8;
  ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
  ASSERT_EQ(ibv_post_send(sender.get(), &wr, &bad), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, kHeaderArea + 8);
}

// Between ibv_wr_set_ud_addr and ibv_wr_complete the program may destroy the handle and create
// another at the same place.
TEST_F(UdTest, BuilderKeepsTheAddressAfterTheHandleIsDestroyed) {
  const ibv_qp_init_attr plain = datagram_attributes(a_);
  ibv_qp_init_attr_ex init{};
  init.qp_type = plain.qp_type;
  init.send_cq = plain.send_cq;
  init.recv_cq = plain.recv_cq;
  init.cap = plain.cap;
  init.pd = a_.pd.get();
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.send_ops_flags = IBV_QP_EX_WITH_SEND;
  const QpPtr sender(ibv_create_qp_ex(context_.get(), &init));
  ASSERT_NE(sender, nullptr);
  ASSERT_EQ(datagram_to_rts(sender.get()), 0);
  ASSERT_EQ(b_.receive(1, 0, 100), 0);
  ibv_ah_attr attr = address();
  AhPtr ah(ibv_create_ah(a_.pd.get(), &attr));
  ASSERT_NE(ah, nullptr);
  ibv_qp_ex* const ex = ibv_qp_to_qp_ex(sender.get());
  ibv_wr_start(ex);
  ex->wr_id = 1;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(ex);
  ibv_wr_set_ud_addr(ex, ah.get(), b_.qp->qp_num, kQkey);
  ibv_wr_set_sge(ex, a_.mr->lkey, a_.sge(0, 8).addr, 8);
  ah.reset();
  attr.grh.dgid.raw[15] = 99;
  ah.reset(ibv_create_ah(a_.pd.get(), &attr));
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, kHeaderArea + 8);
}

TEST_F(UdTest, ALocalErrorStopsOnlyTheSendQueue) {
  ibv_ah_attr attr = address();
  const AhPtr ah(ibv_create_ah(a_.pd.get(), &attr));
  ibv_sge sge = a_.sge(0, 8);
  sge.lkey ^= 0x100;
  ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_LOC_PROT_ERR);
  ibv_qp_attr now{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(a_.qp.get(), &now, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(now.qp_state, IBV_QPS_SQE);
  EXPECT_EQ(now.qkey, kQkey);
  now.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(ibv_modify_qp(a_.qp.get(), &now, IBV_QP_STATE), 0);
  ASSERT_EQ(b_.receive(1, 0, 100), 0);
  sge = a_.sge(0, 8);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
}

// Only pacing limits the sender.
TEST_F(UdTest, LosesNothingOnAnIdleLoopback) {
  ibv_ah_attr attr = address();
  const AhPtr ah(ibv_create_ah(a_.pd.get(), &attr));
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
  const uint32_t mtu = 128u << port.active_mtu;
  constexpr int kRounds = 32;
  constexpr int kDepth = 64;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kDepth; ++i) {
      ASSERT_EQ(b_.receive(1, static_cast<size_t>(i) * 8192, mtu + kHeaderArea), 0);
    }
    ibv_sge sge = a_.sge(0, mtu);
    for (int i = 0; i < kDepth; ++i) {
      ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
      ASSERT_EQ(a_.send(wr), 0);
    }
    for (int i = 0; i < kDepth; ++i) {
      ASSERT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
    }
    for (int i = 0; i < kDepth; ++i) {
      ASSERT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
    }
  }
}

}  // namespace
}  // namespace verbena::test
