// Calls that must be rejected, with the documented errno.
#include <cerrno>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

class Errors : public LoopbackTest {
 protected:
  void expect_no_qp(int code, ibv_qp_init_attr init) {
    errno = 0;
    ibv_qp* qp = ibv_create_qp(a_.pd.get(), &init);
    EXPECT_EQ(qp, nullptr);
    EXPECT_EQ(errno, code) << strerror(errno);
  }
  QpPtr fresh_qp() {
    ibv_qp_init_attr init = rc_attributes(a_.cq.get(), a_.receive_cq.get());
    return QpPtr(ibv_create_qp(a_.pd.get(), &init));
  }
};

TEST_F(Errors, RejectsCompletionQueuesBeyondTheLimits) {
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(context_.get(), &device), 0);
  const struct {
    int cqe, vector;
  } bad[] = {{0, 0}, {-1, 0}, {device.max_cqe + 1, 0}, {1, -1}, {1, context_->num_comp_vectors}};
  for (const auto& row : bad) {
    errno = 0;
    EXPECT_EQ(ibv_create_cq(context_.get(), row.cqe, nullptr, nullptr, row.vector), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  CqPtr largest(ibv_create_cq(context_.get(), device.max_cqe, nullptr, nullptr, 0));
  ASSERT_NE(largest, nullptr);
  EXPECT_GE(largest->cqe, device.max_cqe);
}

TEST_F(Errors, RejectsQueuePairsBeyondTheLimits) {
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(context_.get(), &device), 0);
  const ibv_qp_init_attr good = rc_attributes(a_.cq.get(), a_.receive_cq.get());
  const auto with = [&](auto change) {
    ibv_qp_init_attr init = good;
    change(init);
    return init;
  };
  const auto max_wr = static_cast<uint32_t>(device.max_qp_wr);
  const auto max_sge = static_cast<uint32_t>(device.max_sge);
  expect_no_qp(EINVAL, with([&](auto& i) { i.cap.max_send_wr = max_wr + 1; }));
  expect_no_qp(EINVAL, with([&](auto& i) { i.cap.max_recv_wr = max_wr + 1; }));
  expect_no_qp(EINVAL, with([&](auto& i) { i.cap.max_send_sge = max_sge + 1; }));
  expect_no_qp(EINVAL, with([&](auto& i) { i.cap.max_recv_sge = max_sge + 1; }));
  expect_no_qp(EINVAL, with([&](auto& i) { i.cap.max_inline_data = 1u << 20; }));
  expect_no_qp(EINVAL, with([&](auto& i) { i.send_cq = nullptr; }));
  expect_no_qp(EINVAL, with([&](auto& i) { i.recv_cq = nullptr; }));
  for (const ibv_qp_type type : {IBV_QPT_RAW_PACKET, IBV_QPT_DRIVER}) {
    expect_no_qp(EOPNOTSUPP, with([&](auto& i) { i.qp_type = type; }));
  }

  ibv_qp_init_attr largest = with([&](auto& i) {
    i.cap = {max_wr, max_wr, max_sge, max_sge, 1024};
  });
  QpPtr qp(ibv_create_qp(a_.pd.get(), &largest));
  ASSERT_NE(qp, nullptr);
  EXPECT_GE(largest.cap.max_send_wr, max_wr);
  EXPECT_GE(largest.cap.max_inline_data, 1024u);
  ibv_qp_init_attr smallest = with([&](auto& i) { i.cap = {}; });
  QpPtr small(ibv_create_qp(a_.pd.get(), &smallest));
  EXPECT_NE(small, nullptr);
}

TEST_F(Errors, RejectsInvalidExtendedQueuePairs) {
  ibv_qp_init_attr_ex init{};
  init.send_cq = a_.cq.get();
  init.recv_cq = a_.receive_cq.get();
  init.qp_type = IBV_QPT_RC;
  init.cap = {1, 1, 1, 1, 0};
  const auto refused = [&] {
    errno = 0;
    EXPECT_EQ(ibv_create_qp_ex(context_.get(), &init), nullptr);
    return errno;
  };
  init.comp_mask = 0;
  EXPECT_EQ(refused(), EINVAL);  // no protection domain
  init.pd = a_.pd.get();
  init.comp_mask = IBV_QP_INIT_ATTR_PD | 1u << 31;
  EXPECT_EQ(refused(), EINVAL);
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  init.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
  EXPECT_EQ(refused(), EOPNOTSUPP);
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.send_ops_flags = IBV_QP_EX_WITH_TSO;
  EXPECT_EQ(refused(), EOPNOTSUPP);
  init.comp_mask = IBV_QP_INIT_ATTR_PD;
  QpPtr qp(ibv_create_qp_ex(context_.get(), &init));
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(ibv_qp_to_qp_ex(qp.get()), nullptr);
}

TEST_F(Errors, RejectsInvalidTransitionsWithoutChangingTheState) {
  QpPtr qp = fresh_qp();
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(to_rts(qp.get()), EINVAL);
  EXPECT_EQ(to_rtr(qp.get(), 1), EINVAL);
  EXPECT_EQ(qp->state, IBV_QPS_RESET);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 2;
  constexpr int kInitMask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, kInitMask), EINVAL);
  attr.port_num = 1;
  attr.pkey_index = 1;
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, kInitMask), EINVAL);
  attr.pkey_index = 0;
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, kInitMask & ~IBV_QP_PORT), EINVAL);
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, kInitMask | IBV_QP_SQ_PSN), EINVAL);
  ASSERT_EQ(ibv_modify_qp(qp.get(), &attr, kInitMask), 0);
  EXPECT_EQ(qp->state, IBV_QPS_INIT);

  constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  ibv_qp_attr good{};
  good.qp_state = IBV_QPS_RTR;
  good.path_mtu = IBV_MTU_1024;
  good.dest_qp_num = 0x123456;
  good.ah_attr.is_global = 1;
  good.ah_attr.port_num = 1;
  ASSERT_EQ(ibv_query_gid(context_.get(), 1, 0, &good.ah_attr.grh.dgid), 0);
  const auto refused = [&](auto change) {
    ibv_qp_attr bad = good;
    change(bad);
    const int code = ibv_modify_qp(qp.get(), &bad, kRtrMask);
    EXPECT_EQ(qp->state, IBV_QPS_INIT);
    return code;
  };
  EXPECT_EQ(refused([](auto& a) { a.path_mtu = no_such<ibv_mtu>(0); }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.path_mtu = no_such<ibv_mtu>(6); }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.ah_attr.is_global = 0; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.ah_attr.grh.sgid_index = 100; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.ah_attr.grh.dgid = {}; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.max_dest_rd_atomic = 255; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.qp_state = no_such<ibv_qp_state>(256); }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.qp_state = IBV_QPS_UNKNOWN; }), EINVAL);
  EXPECT_EQ(ibv_modify_qp(qp.get(), &good, kRtrMask), 0);
}

TEST_F(Errors, RejectsDestroyOfObjectsInUse) {
  EXPECT_EQ(ibv_dealloc_pd(a_.pd.get()), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(a_.cq.get()), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(a_.receive_cq.get()), EBUSY);
  EXPECT_EQ(ibv_destroy_comp_channel(a_.channel.get()), EBUSY);
  // The objects still work.
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);

  PdPtr pd(ibv_alloc_pd(context_.get()));
  MrPtr mr(ibv_reg_mr(pd.get(), a_.memory.data(), 64, 0));
  EXPECT_EQ(ibv_dealloc_pd(pd.get()), EBUSY);
  mr.reset();
  MwPtr mw(ibv_alloc_mw(pd.get(), IBV_MW_TYPE_1));
  EXPECT_EQ(ibv_dealloc_pd(pd.get()), EBUSY);
}

TEST_F(Errors, RejectsPostsBeforeTheRequiredState) {
  QpPtr qp = fresh_qp();
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr send = rdma(IBV_WR_SEND, &sge, b_, 0);
  ibv_send_wr* bad_send = nullptr;
  EXPECT_EQ(ibv_post_send(qp.get(), &send, &bad_send), EINVAL);
  EXPECT_EQ(bad_send, &send);
  ibv_recv_wr receive{1, nullptr, &sge, 1};
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(ibv_post_recv(qp.get(), &receive, &bad_receive), EINVAL);
  EXPECT_EQ(bad_receive, &receive);
  ASSERT_EQ(to_init(qp.get()), 0);
  EXPECT_EQ(ibv_post_recv(qp.get(), &receive, &bad_receive), 0);
  EXPECT_EQ(ibv_post_send(qp.get(), &send, &bad_send), EINVAL);
}

TEST_F(Errors, RejectsInvalidSendRequests) {
  ibv_sge sge = a_.sge(0, 8);
  ibv_sge many[33];
  for (ibv_sge& s : many) s = sge;
  const auto refused = [&](auto change) {
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    change(wr);
    ibv_send_wr* bad = nullptr;
    const int code = ibv_post_send(a_.qp.get(), &wr, &bad);
    EXPECT_EQ(bad, code != 0 ? &wr : nullptr);
    return code;
  };
  EXPECT_EQ(refused([](auto& w) { w.opcode = IBV_WR_TSO; }), EINVAL);
  EXPECT_EQ(refused([](auto& w) { w.opcode = IBV_WR_DRIVER1; }), EINVAL);
  EXPECT_EQ(refused([](auto& w) { w.opcode = no_such<ibv_wr_opcode>(255); }), EINVAL);
  EXPECT_EQ(refused([](auto& w) { w.opcode = no_such<ibv_wr_opcode>(256 + 2); }), EINVAL);
  EXPECT_EQ(refused([](auto& w) { w.num_sge = -1; }), EINVAL);
  EXPECT_EQ(refused([&](auto& w) { w.sg_list = many, w.num_sge = 5; }),
            EINVAL);  // max_send_sge is 4
  EXPECT_EQ(refused([&](auto& w) { w.sg_list = many, w.num_sge = 33; }), EINVAL);
  EXPECT_EQ(refused([](auto& w) { w.opcode = IBV_WR_BIND_MW, w.bind_mw.mw = nullptr; }), EINVAL);
  EXPECT_EQ(refused([](auto& w) { w.opcode = IBV_WR_RDMA_READ, w.send_flags |= IBV_SEND_INLINE; }),
            EINVAL);
  EXPECT_EQ(refused([&](auto& w) {
              w.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
              w.wr.atomic.remote_addr = b_.address(4);
              w.wr.atomic.rkey = b_.mr->rkey;
            }),
            EINVAL);
  sge.length = 257;  // max_inline_data is 256
  EXPECT_NE(refused([](auto& w) { w.send_flags |= IBV_SEND_INLINE; }), 0);
  EXPECT_EQ(completions_within_ms(a_.cq.get(), 20), 0);
}

// The requests before the invalid one are posted; the invalid one and those after it are not.
TEST_F(Errors, PostsTheRequestsBeforeAnInvalidOne) {
  ibv_sge sge = a_.sge(0, 1);
  a_.memory[0] = 1;
  ibv_send_wr wrs[4];
  for (size_t i = 0; i < 4; ++i) {
    wrs[i] = rdma(IBV_WR_RDMA_WRITE, &sge, b_, i);
    wrs[i].wr_id = i;
    wrs[i].next = i < 3 ? &wrs[i + 1] : nullptr;
  }
  wrs[2].opcode = IBV_WR_TSO;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a_.qp.get(), wrs, &bad), EINVAL);
  EXPECT_EQ(bad, &wrs[2]);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).wr_id, 0u);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).wr_id, 1u);
  EXPECT_EQ(completions_within_ms(a_.cq.get(), 20), 0);
  EXPECT_EQ(b_.memory[0], 1);
  EXPECT_EQ(b_.memory[1], 1);
  EXPECT_EQ(b_.memory[2], 0);
  EXPECT_EQ(b_.memory[3], 0);
}

TEST_F(Errors, RejectsPostsToFullQueues) {
  ibv_sge sge = a_.sge(0, 8);
  ibv_recv_wr receives[70];
  for (size_t i = 0; i < 70; ++i) {
    receives[i] = {i, i < 69 ? &receives[i + 1] : nullptr, &sge, 1};
  }
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(a_.qp.get(), receives, &bad), ENOMEM);
  EXPECT_EQ(bad, &receives[64]);

  // The peer has no receive posted, so the sends wait behind the first.
  ibv_send_wr sends[70];
  for (size_t i = 0; i < 70; ++i) {
    sends[i] = rdma(IBV_WR_SEND, &sge, b_, 0);
    sends[i].next = i < 69 ? &sends[i + 1] : nullptr;
  }
  ibv_send_wr* bad_send = nullptr;
  EXPECT_EQ(ibv_post_send(a_.qp.get(), sends, &bad_send), ENOMEM);
  EXPECT_EQ(bad_send, &sends[64]);
}

TEST_F(Errors, RejectsInvalidWindowTypesAndBinds) {
  errno = 0;
  EXPECT_EQ(ibv_alloc_mw(a_.pd.get(), no_such<ibv_mw_type>(3)), nullptr);
  EXPECT_EQ(errno, EINVAL);
  // Binding needs a region with IBV_ACCESS_MW_BIND.
  MwPtr mw(ibv_alloc_mw(a_.pd.get(), IBV_MW_TYPE_1));
  MrPtr plain(ibv_reg_mr(a_.pd.get(), a_.memory.data(), 4096, IBV_ACCESS_LOCAL_WRITE));
  ibv_mw_bind bind{};
  bind.bind_info = {plain.get(), a_.address(), 64, IBV_ACCESS_REMOTE_READ};
  ASSERT_EQ(ibv_bind_mw(a_.qp.get(), mw.get(), &bind), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_MW_BIND_ERR);
}

// Unsupported objects must fail without a crash.
TEST_F(Errors, RejectsUnsupportedObjects) {
  const auto null_with = [&](auto* object) {
    EXPECT_EQ(object, nullptr);
    return errno;
  };
  ibv_ah_attr ah{};
  ibv_wq_init_attr wq{};
  ibv_rwq_ind_table_init_attr table{};
  ibv_qp_open_attr open{};
  EXPECT_EQ(null_with(ibv_create_wq(context_.get(), &wq)), EOPNOTSUPP);
  EXPECT_EQ(null_with(ibv_create_rwq_ind_table(context_.get(), &table)), EOPNOTSUPP);
  EXPECT_EQ(null_with(ibv_open_qp(context_.get(), &open)), EINVAL);
  uint8_t mac[6];
  uint16_t vlan = 0;
  EXPECT_LT(ibv_resolve_eth_l2_from_gid(context_.get(), &ah, mac, &vlan), 0);
  EXPECT_EQ(ibv_query_qp_data_in_order(a_.qp.get(), IBV_WR_RDMA_WRITE, 0), 0);
}

}  // namespace
}  // namespace verbena::test
