// The limits of ibv_query_device are exact: that many objects of each kind can be created, and one
// more is rejected.
#include <cerrno>

#include "tests/abi/datagram_support.h"

namespace verbena::test {
namespace {

using SrqPtr = std::unique_ptr<ibv_srq, Destroy<ibv_destroy_srq>>;

class Limits : public LoopbackTest {
 protected:
  void SetUp() override {
    context_ = open_loopback();
    ASSERT_NE(context_, nullptr);
    ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &ex_), 0);
    pd_.reset(ibv_alloc_pd(context_.get()));
    cq_.reset(ibv_create_cq(context_.get(), 16, nullptr, nullptr, 0));
    ASSERT_TRUE(pd_ && cq_);
  }

  // Creates objects with make() up to the limit, of which `already` exist, and destroys them.
  template <typename Ptr, typename Make>
  void expect_exactly(int limit, int already, Make make) {
    ASSERT_GT(limit, already);
    std::vector<Ptr> all;
    all.reserve(static_cast<size_t>(limit));
    for (int i = already; i < limit; ++i) {
      all.emplace_back(make());
      ASSERT_NE(all.back(), nullptr) << i << " of " << limit << ": " << strerror(errno);
    }
    errno = 0;
    EXPECT_EQ(Ptr(make()), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    // After one is destroyed, another can be created. The first is the worst case for a list.
    all.front().reset();
    all.front().reset(make());
    EXPECT_NE(all.front(), nullptr);
    EXPECT_EQ(Ptr(make()), nullptr);
  }

  ibv_qp_init_attr smallest(ibv_qp_type type = IBV_QPT_RC) {
    ibv_qp_init_attr init{};
    init.qp_type = type;
    init.send_cq = init.recv_cq = cq_.get();
    init.cap = {1, 1, 1, 1, 0};
    return init;
  }

  ibv_device_attr_ex ex_{};
  const ibv_device_attr& device_ = ex_.orig_attr;
  PdPtr pd_;
  CqPtr cq_;
};

TEST_F(Limits, AllowsExactlyMaxQp) {
  expect_exactly<QpPtr>(device_.max_qp, 0, [&] {
    ibv_qp_init_attr init = smallest();
    return ibv_create_qp(pd_.get(), &init);
  });
}

// A QPN is reused as late as possible; two full rounds must not become slow.
TEST_F(Limits, ReusesQpnsAfterAllWereUsed) {
  for (int i = 0; i < 2 * device_.max_qp; ++i) {
    ibv_qp_init_attr init = smallest();
    ASSERT_NE(QpPtr(ibv_create_qp(pd_.get(), &init)), nullptr) << i;
  }
}

TEST_F(Limits, AllowsExactlyMaxCq) {
  expect_exactly<CqPtr>(device_.max_cq, 1,
                        [&] { return ibv_create_cq(context_.get(), 1, nullptr, nullptr, 0); });
}

TEST_F(Limits, AllowsExactlyMaxPd) {
  expect_exactly<PdPtr>(device_.max_pd, 1, [&] { return ibv_alloc_pd(context_.get()); });
}

TEST_F(Limits, AllowsExactlyMaxSrq) {
  expect_exactly<SrqPtr>(device_.max_srq, 0, [&] {
    ibv_srq_init_attr init{nullptr, {1, 1, 0}};
    return ibv_create_srq(pd_.get(), &init);
  });
}

TEST_F(Limits, AllowsExactlyMaxAh) {
  ibv_ah_attr attr{};
  attr.is_global = 1;
  attr.port_num = 1;
  ASSERT_EQ(ibv_query_gid(context_.get(), 1, 0, &attr.grh.dgid), 0);
  expect_exactly<AhPtr>(device_.max_ah, 0, [&] { return ibv_create_ah(pd_.get(), &attr); });
}

// Regions and windows have separate limits.
TEST_F(Limits, AllowsExactlyMaxMrAndMaxMw) {
  std::vector<uint8_t> memory(4096);
  const auto region = [&] {
    return ibv_reg_mr(pd_.get(), memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
  };
  std::vector<MwPtr> windows;
  for (int i = 0; i < device_.max_mw; ++i) {
    windows.emplace_back(ibv_alloc_mw(pd_.get(), IBV_MW_TYPE_2));
    ASSERT_NE(windows.back(), nullptr) << i;
  }
  errno = 0;
  EXPECT_EQ(ibv_alloc_mw(pd_.get(), IBV_MW_TYPE_1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  expect_exactly<MrPtr>(device_.max_mr, 0, region);
}

TEST_F(Limits, RegistersTheWholeAddressSpaceOnDemand) {
  EXPECT_EQ(device_.max_mr_size, UINT64_MAX);
  MrPtr everything(
      ibv_reg_mr(pd_.get(), nullptr, SIZE_MAX, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE));
  EXPECT_NE(everything, nullptr);
}

TEST_F(Limits, AllowsExactlyTheMulticastLimits) {
  const auto groups = static_cast<uint32_t>(device_.max_mcast_grp);
  const auto members = static_cast<uint32_t>(device_.max_mcast_qp_attach);
  ASSERT_EQ(static_cast<uint32_t>(device_.max_total_mcast_qp_attach), groups * members);
  const auto group = [](uint32_t number) {
    ibv_gid gid{};
    gid.raw[10] = gid.raw[11] = 0xFF;
    gid.raw[12] = 239;
    gid.raw[13] = 86;
    gid.raw[14] = static_cast<uint8_t>(number >> 8);
    gid.raw[15] = static_cast<uint8_t>(number);
    return gid;
  };
  std::vector<QpPtr> qps;
  for (uint32_t i = 0; i <= members; ++i) {
    ibv_qp_init_attr init = smallest(IBV_QPT_UD);
    qps.emplace_back(ibv_create_qp(pd_.get(), &init));
    ASSERT_NE(qps.back(), nullptr);
  }
  const ibv_gid beyond = group(groups);
  for (uint32_t g = 0; g < groups; ++g) {
    const ibv_gid gid = group(g);
    for (uint32_t i = 0; i < members; ++i) {
      ASSERT_EQ(ibv_attach_mcast(qps[i].get(), &gid, 0), 0) << g << " " << i;
    }
    ASSERT_EQ(ibv_attach_mcast(qps[members].get(), &gid, 0), ENOMEM);
  }
  EXPECT_EQ(ibv_attach_mcast(qps[members].get(), &beyond, 0), ENOMEM);
  for (uint32_t g = 0; g < groups; ++g) {
    const ibv_gid gid = group(g);
    for (uint32_t i = 0; i < members; ++i) {
      ASSERT_EQ(ibv_detach_mcast(qps[i].get(), &gid, 0), 0);
    }
  }
}

TEST_F(Limits, AllowsExactlyMaxQpWrAndMaxSge) {
  ibv_qp_init_attr largest = smallest();
  const auto wr = static_cast<uint32_t>(device_.max_qp_wr);
  const auto sge = static_cast<uint32_t>(device_.max_sge);
  EXPECT_EQ(device_.max_sge_rd, device_.max_sge);  // the SGEs that a READ may scatter to
  largest.cap = {wr, wr, sge, sge, 1024};
  QpPtr qp(ibv_create_qp(pd_.get(), &largest));
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(to_init(qp.get()), 0);
  // max_qp_wr receives with max_sge SGEs each can be posted.
  std::vector<ibv_sge> sges(sge, ibv_sge{0, 1, 0});
  ibv_recv_wr receive{0, nullptr, sges.data(), static_cast<int>(sge)};
  ibv_recv_wr* bad = nullptr;
  for (uint32_t i = 0; i < wr; ++i) ASSERT_EQ(ibv_post_recv(qp.get(), &receive, &bad), 0) << i;
  EXPECT_EQ(ibv_post_recv(qp.get(), &receive, &bad), ENOMEM);
  ASSERT_EQ(to_rtr(qp.get(), qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp.get()), 0);
  ibv_qp_attr drained{};
  drained.qp_state = IBV_QPS_SQD;  // so that posted requests stay in the queue
  ASSERT_EQ(ibv_modify_qp(qp.get(), &drained, IBV_QP_STATE), 0);
  ibv_send_wr send{};
  send.opcode = IBV_WR_SEND;
  send.sg_list = sges.data();
  send.num_sge = static_cast<int>(sge);
  ibv_send_wr* bad_send = nullptr;
  for (uint32_t i = 0; i < wr; ++i) ASSERT_EQ(ibv_post_send(qp.get(), &send, &bad_send), 0) << i;
  EXPECT_EQ(ibv_post_send(qp.get(), &send, &bad_send), ENOMEM);

  const auto refused = [&](auto change) {
    ibv_qp_init_attr init = largest;
    change(init.cap);
    errno = 0;
    EXPECT_EQ(ibv_create_qp(pd_.get(), &init), nullptr);
    EXPECT_EQ(errno, EINVAL);
  };
  refused([](ibv_qp_cap& c) { ++c.max_send_wr; });
  refused([](ibv_qp_cap& c) { ++c.max_recv_wr; });
  refused([](ibv_qp_cap& c) { ++c.max_send_sge; });
  refused([](ibv_qp_cap& c) { ++c.max_recv_sge; });
  refused([](ibv_qp_cap& c) { ++c.max_inline_data; });
}

TEST_F(Limits, AllowsExactlyMaxSrqWr) {
  const auto wr = static_cast<uint32_t>(device_.max_srq_wr);
  const auto sge = static_cast<uint32_t>(device_.max_srq_sge);
  ibv_srq_init_attr largest{nullptr, {wr, sge, 0}};
  SrqPtr srq(ibv_create_srq(pd_.get(), &largest));
  ASSERT_NE(srq, nullptr);
  std::vector<ibv_sge> sges(sge, ibv_sge{0, 1, 0});
  ibv_recv_wr receive{0, nullptr, sges.data(), static_cast<int>(sge)};
  ibv_recv_wr* bad = nullptr;
  for (uint32_t i = 0; i < wr; ++i) ASSERT_EQ(ibv_post_srq_recv(srq.get(), &receive, &bad), 0) << i;
  EXPECT_EQ(ibv_post_srq_recv(srq.get(), &receive, &bad), ENOMEM);
  for (const ibv_srq_attr beyond : {ibv_srq_attr{wr + 1, sge, 0}, ibv_srq_attr{wr, sge + 1, 0}}) {
    ibv_srq_init_attr init{nullptr, beyond};
    errno = 0;
    EXPECT_EQ(ibv_create_srq(pd_.get(), &init), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
}

TEST_F(Limits, AllowsExactlyMaxCqe) {
  CqPtr largest(ibv_create_cq(context_.get(), device_.max_cqe, nullptr, nullptr, 0));
  ASSERT_NE(largest, nullptr);
  EXPECT_GE(largest->cqe, device_.max_cqe);
  EXPECT_EQ(ibv_resize_cq(largest.get(), device_.max_cqe + 1), EINVAL);
  errno = 0;
  EXPECT_EQ(ibv_create_cq(context_.get(), device_.max_cqe + 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// Every queue pair may have that many outstanding READs and atomics, all at the same time.
TEST_F(Limits, AllowsExactlyMaxQpRdAtom) {
  const int most = device_.max_qp_rd_atom;
  ASSERT_EQ(device_.max_qp_init_rd_atom, most);
  ASSERT_EQ(device_.max_res_rd_atom, device_.max_qp * most);
  ASSERT_LT(most, 255);
  ibv_qp_init_attr init = smallest();
  QpPtr qp(ibv_create_qp(pd_.get(), &init));
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(to_init(qp.get()), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = qp->qp_num;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  ASSERT_EQ(ibv_query_gid(context_.get(), 1, 0, &attr.ah_attr.grh.dgid), 0);
  constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  attr.max_dest_rd_atomic = static_cast<uint8_t>(most + 1);
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, kRtrMask), EINVAL);
  attr.max_dest_rd_atomic = static_cast<uint8_t>(most);
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, kRtrMask), 0);
  constexpr int kRts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  attr.qp_state = IBV_QPS_RTS;
  attr.max_rd_atomic = static_cast<uint8_t>(most + 1);
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, kRts), EINVAL);
  attr.max_rd_atomic = static_cast<uint8_t>(most);
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, kRts), 0);

  const auto& pacing = ex_.packet_pacing_caps;
  for (const auto& [kbps, code] :
       {std::pair{pacing.qp_rate_limit_min - 1, EINVAL}, std::pair{pacing.qp_rate_limit_min, 0},
        std::pair{pacing.qp_rate_limit_max + 1, EINVAL}, std::pair{pacing.qp_rate_limit_max, 0}}) {
    ibv_qp_rate_limit_attr limit{kbps, 0, 0, 0};
    EXPECT_EQ(ibv_modify_qp_rate_limit(qp.get(), &limit), code) << kbps;
    attr.rate_limit = kbps;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_RATE_LIMIT), code) << kbps;
  }
}

TEST_F(Limits, AllowsExactlyMaxDmSize) {
  const auto allocate = [&](size_t length) {
    ibv_alloc_dm_attr attr{length, 0, 0};
    errno = 0;
    return ibv_alloc_dm(context_.get(), &attr);
  };
  EXPECT_EQ(allocate(ex_.max_dm_size + 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  ibv_dm* const all = allocate(ex_.max_dm_size);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(allocate(1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(ibv_free_dm(all), 0);
  ibv_dm* const again = allocate(1);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(ibv_free_dm(again), 0);
}

}  // namespace
}  // namespace verbena::test
