// ibv_modify_qp_rate_limit, and small calls for queue pairs: ECE, counters, objects that need
// Ethernet hardware.
#include <time.h>

#include <cerrno>

#include "tests/abi/datagram_support.h"

namespace verbena::test {
namespace {

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

int limit_rate(ibv_qp* qp, uint32_t kbps, uint32_t burst) {
  ibv_qp_rate_limit_attr attr{};
  attr.rate_limit = kbps;
  attr.max_burst_sz = burst;
  return ibv_modify_qp_rate_limit(qp, &attr);
}

class RateLimit : public LoopbackTest {
 protected:
  int limit(uint32_t kbps, uint32_t burst = 0) { return limit_rate(a_.qp.get(), kbps, burst); }
  int64_t write(uint32_t bytes) {
    const int64_t start = now_ns();
    ibv_sge sge = a_.sge(0, bytes);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    EXPECT_EQ(a_.send(wr), 0);
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
    return now_ns() - start;
  }
};

TEST_F(RateLimit, LimitsTheRate) {
  ASSERT_EQ(limit(16'000, 4096), 0);      // 2 bytes a microsecond
  EXPECT_GE(write(200'000), 95'000'000);  // 100 ms, less the burst
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(a_.qp.get(), &attr, IBV_QP_RATE_LIMIT, &init), 0);
  EXPECT_EQ(attr.rate_limit, 16'000u);
  ASSERT_EQ(limit(0), 0);
  write(200'000);
}

TEST_F(RateLimit, LimitsTheRateOfUc) {
  for (Side* side : {&a_, &b_}) {
    ibv_qp_init_attr init = rc_attributes(side->cq.get(), side->receive_cq.get());
    init.qp_type = IBV_QPT_UC;
    side->qp.reset(ibv_create_qp(side->pd.get(), &init));
    ASSERT_EQ(to_init(side->qp.get()), 0);
  }
  ASSERT_EQ(uc_to_rts(a_.qp.get(), b_.qp->qp_num), 0);
  ASSERT_EQ(uc_to_rts(b_.qp.get(), a_.qp->qp_num), 0);
  ASSERT_EQ(limit(16'000, 4096), 0);
  EXPECT_GE(write(200'000), 95'000'000);
  ASSERT_EQ(limit(0), 0);
  write(200'000);
}

using DatagramRateLimit = DatagramTest;

TEST_F(DatagramRateLimit, LimitsTheRate) {
  ibv_ah_attr to = address();
  const AhPtr ah(ibv_create_ah(a_.pd.get(), &to));
  ASSERT_NE(ah, nullptr);
  const auto send_hundred = [&] {
    const int64_t start = now_ns();
    for (int list = 0; list < 2; ++list) {
      for (int i = 0; i < 50; ++i) {
        ibv_sge sge = a_.sge(0, 1000);
        ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
        EXPECT_EQ(a_.send(wr), 0);
      }
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
      }
    }
    return now_ns() - start;
  };
  ASSERT_EQ(limit_rate(a_.qp.get(), 16'000, 4096), 0);  // 2 bytes a microsecond
  EXPECT_GE(send_hundred(), 46'000'000);                // 50 ms, less the burst
  ASSERT_EQ(limit_rate(a_.qp.get(), 0, 0), 0);
  send_hundred();
}

TEST_F(RateLimit, CanBeRemovedWhileRequestsWait) {
  ASSERT_EQ(limit(64), 0);  // 125 s for the next request
  ibv_sge sge = a_.sge(0, 1'000'000);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(completions_within_ms(a_.cq.get(), 50), 0);
  ASSERT_EQ(limit(0), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(RateLimit, RejectsRatesBeyondTheBounds) {
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &device), 0);
  const ibv_packet_pacing_caps& caps = device.packet_pacing_caps;
  EXPECT_TRUE(ibv_is_qpt_supported(caps.supported_qpts, IBV_QPT_RC));
  EXPECT_EQ(limit(caps.qp_rate_limit_min - 1), EINVAL);
  EXPECT_EQ(limit(caps.qp_rate_limit_min), 0);
  EXPECT_EQ(limit(caps.qp_rate_limit_max), 0);
  EXPECT_EQ(limit(caps.qp_rate_limit_max + 1), EINVAL);
  EXPECT_EQ(limit(0, 1000), EINVAL);
  ibv_qp_rate_limit_attr attr{};
  attr.comp_mask = 1;
  EXPECT_EQ(ibv_modify_qp_rate_limit(a_.qp.get(), &attr), EINVAL);
  ibv_qp_init_attr init = rc_attributes(a_.cq.get(), a_.cq.get());
  QpPtr fresh(ibv_create_qp(a_.pd.get(), &init));
  attr = {.rate_limit = 1000, .max_burst_sz = 0, .typical_pkt_sz = 0, .comp_mask = 0};
  EXPECT_EQ(ibv_modify_qp_rate_limit(fresh.get(), &attr), EINVAL);
}

using SmallCalls = LoopbackTest;

// UCX queries ECE and sets the result, and assumes that ECE is supported if both succeed.
TEST_F(SmallCalls, RejectsEce) {
  ibv_ece ece{};
  EXPECT_EQ(ibv_query_ece(a_.qp.get(), &ece), EOPNOTSUPP);
  EXPECT_EQ(ibv_set_ece(a_.qp.get(), &ece), EOPNOTSUPP);
}

TEST_F(SmallCalls, CountersCanBeCreatedButNotAttached) {
  ibv_counters_init_attr init{};
  ibv_counters* counters = ibv_create_counters(context_.get(), &init);
  ASSERT_NE(counters, nullptr);
  ibv_counter_attach_attr attach{};
  EXPECT_EQ(ibv_attach_counters_point_flow(counters, &attach, nullptr), EOPNOTSUPP);
  uint64_t value = 0;
  EXPECT_EQ(ibv_read_counters(counters, &value, 0, 0), 0);
  EXPECT_EQ(ibv_read_counters(counters, &value, 1, 0), EINVAL);
  EXPECT_EQ(ibv_read_counters(counters, &value, 0, 1u << 9), EINVAL);
  EXPECT_EQ(ibv_destroy_counters(counters), 0);
  init.comp_mask = 1;
  EXPECT_EQ(ibv_create_counters(context_.get(), &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(SmallCalls, RejectsObjectsThatNeedEthernetHardware) {
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &device), 0);
  EXPECT_EQ(device.tso_caps.max_tso, 0u);
  EXPECT_EQ(device.rss_caps.supported_qpts, 0u);
  EXPECT_EQ(device.rss_caps.max_rwq_indirection_tables, 0u);
  EXPECT_EQ(device.max_wq_type_rq, 0u);
  EXPECT_EQ(device.raw_packet_caps, 0u);
  EXPECT_EQ(device.tm_caps.max_num_tags, 0u);
  EXPECT_EQ(device.cq_mod_caps.max_cq_count, 0u);
  EXPECT_EQ(device.phys_port_cnt_ex, 1u);

  ibv_flow_attr flow{};
  EXPECT_EQ(ibv_create_flow(a_.qp.get(), &flow), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_wq_init_attr wq{};
  EXPECT_EQ(ibv_create_wq(context_.get(), &wq), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_rwq_ind_table_init_attr table{};
  EXPECT_EQ(ibv_create_rwq_ind_table(context_.get(), &table), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_flow_action_esp_attr esp{};
  EXPECT_EQ(ibv_create_flow_action_esp(context_.get(), &esp), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
}  // namespace verbena::test
