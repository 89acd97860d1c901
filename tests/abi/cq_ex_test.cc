// Extended completion queues.
#include <arpa/inet.h>
#include <time.h>

#include <cerrno>
#include <thread>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

int64_t clock_ns(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

class CqEx : public LoopbackTest {
 protected:
  ibv_cq_init_attr_ex attributes() {
    ibv_cq_init_attr_ex attr{};
    attr.cqe = 64;
    attr.cq_context = this;
    attr.wc_flags = uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | IBV_WC_EX_WITH_CVLAN |
                    IBV_WC_EX_WITH_FLOW_TAG;
    return attr;
  }
  // The receive queue of b is an extended one.
  void use(ibv_cq_init_attr_ex attr) {
    a_.qp.reset();
    b_.qp.reset();
    cq_ = ibv_create_cq_ex(context_.get(), &attr);
    ASSERT_NE(cq_, nullptr);
    b_.receive_cq.reset(ibv_cq_ex_to_cq(cq_));
    connect();
  }
  void send(uint64_t wr_id, uint32_t bytes) {
    ASSERT_EQ(b_.receive(wr_id, 0, 4096), 0);
    ibv_sge sge = a_.sge(0, bytes);
    ibv_send_wr wr = rdma(IBV_WR_SEND_WITH_IMM, &sge, b_, 0);
    wr.imm_data = htonl(0xABCD);
    ASSERT_EQ(a_.send(wr), 0);
    ASSERT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  }
  int start() {
    ibv_poll_cq_attr attr{};
    int code = ENOENT;
    for (int i = 0; i < 10'000'000 && code == ENOENT; ++i) code = ibv_start_poll(cq_, &attr);
    return code;
  }
  ibv_cq_ex* cq_ = nullptr;
};

TEST_F(CqEx, ReportsEveryField) {
  use(attributes());
  EXPECT_EQ(cq_->cq_context, this);
  const int64_t before = clock_ns(CLOCK_MONOTONIC), wall_before = clock_ns(CLOCK_REALTIME);
  send(11, 5);
  send(12, 6);
  ASSERT_EQ(start(), 0);
  EXPECT_EQ(cq_->status, IBV_WC_SUCCESS);
  EXPECT_EQ(cq_->wr_id, 11u);
  EXPECT_EQ(ibv_wc_read_opcode(cq_), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_vendor_err(cq_), 0u);
  EXPECT_EQ(ibv_wc_read_byte_len(cq_), 5u);
  EXPECT_EQ(ibv_wc_read_imm_data(cq_), htonl(0xABCD));
  EXPECT_EQ(ibv_wc_read_qp_num(cq_), b_.qp->qp_num);
  EXPECT_EQ(ibv_wc_read_src_qp(cq_), a_.qp->qp_num);
  EXPECT_EQ(ibv_wc_read_wc_flags(cq_), unsigned{IBV_WC_WITH_IMM});
  EXPECT_EQ(ibv_wc_read_slid(cq_), 0u);
  EXPECT_EQ(ibv_wc_read_sl(cq_), 0u);
  EXPECT_EQ(ibv_wc_read_dlid_path_bits(cq_), 0u);
  EXPECT_EQ(ibv_wc_read_cvlan(cq_), 0u);
  EXPECT_EQ(ibv_wc_read_flow_tag(cq_), 0u);
  ibv_wc_tm_info info{1, 1};
  ibv_wc_read_tm_info(cq_, &info);
  EXPECT_EQ(info.tag, 0u);
  const auto first = static_cast<int64_t>(ibv_wc_read_completion_ts(cq_));
  EXPECT_GE(first, before);
  EXPECT_LE(first, clock_ns(CLOCK_MONOTONIC));
  const auto wall = static_cast<int64_t>(ibv_wc_read_completion_wallclock_ns(cq_));
  EXPECT_GE(wall, wall_before - 1'000'000);
  EXPECT_LE(wall, clock_ns(CLOCK_REALTIME) + 1'000'000);

  int code = ibv_next_poll(cq_);
  ASSERT_EQ(code, 0);
  EXPECT_EQ(cq_->wr_id, 12u);
  EXPECT_EQ(ibv_wc_read_byte_len(cq_), 6u);
  EXPECT_GE(static_cast<int64_t>(ibv_wc_read_completion_ts(cq_)), first);
  EXPECT_EQ(ibv_next_poll(cq_), ENOENT);
  ibv_end_poll(cq_);
  ibv_poll_cq_attr attr{};
  EXPECT_EQ(ibv_start_poll(cq_, &attr), ENOENT);
  attr.comp_mask = 1;
  EXPECT_EQ(ibv_start_poll(cq_, &attr), EINVAL);
}

TEST_F(CqEx, TimestampsUseTheClockOfTheDevice) {
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &device), 0);
  EXPECT_EQ(device.hca_core_clock, 1'000'000u);  // kHz: a tick is a nanosecond
  EXPECT_EQ(device.completion_timestamp_mask, UINT64_MAX);
  use(attributes());
  ibv_values_ex before{}, after{};
  before.comp_mask = after.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ASSERT_EQ(ibv_query_rt_values_ex(context_.get(), &before), 0);
  send(1, 1);
  ASSERT_EQ(start(), 0);
  const auto stamp = static_cast<int64_t>(ibv_wc_read_completion_ts(cq_));
  ibv_end_poll(cq_);
  ASSERT_EQ(ibv_query_rt_values_ex(context_.get(), &after), 0);
  EXPECT_GE(stamp, before.raw_clock.tv_nsec);
  EXPECT_LE(stamp, after.raw_clock.tv_nsec);
  before.comp_mask = IBV_VALUES_MASK_RESERVED;
  EXPECT_EQ(ibv_query_rt_values_ex(context_.get(), &before), EINVAL);
}

TEST_F(CqEx, BothPollInterfacesWorkOnOneQueue) {
  use(attributes());
  for (uint64_t i = 1; i <= 3; ++i) send(i, 1);
  ASSERT_EQ(start(), 0);
  EXPECT_EQ(cq_->wr_id, 1u);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).wr_id, 2u);  // during the poll
  EXPECT_EQ(cq_->wr_id, 1u);
  ASSERT_EQ(ibv_next_poll(cq_), 0);
  EXPECT_EQ(cq_->wr_id, 3u);
  ibv_poll_cq_attr attr{};
  EXPECT_EQ(ibv_start_poll(cq_, &attr), EINVAL);  // twice
  EXPECT_EQ(ibv_resize_cq(b_.receive_cq.get(), 128), 0);
  ibv_end_poll(cq_);
  ibv_end_poll(cq_);
  EXPECT_EQ(ibv_start_poll(cq_, &attr), ENOENT);
}

TEST_F(CqEx, SingleThreadedQueueWorks) {
  ibv_cq_init_attr_ex attr = attributes();
  attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  use(attr);
  send(1, 1);
  ASSERT_EQ(start(), 0);
  EXPECT_EQ(cq_->wr_id, 1u);
  ibv_end_poll(cq_);
}

// A single-threaded queue may be used by several threads, one at a time.
TEST_F(CqEx, AnotherThreadMayContinueASingleThreadedPoll) {
  ibv_cq_init_attr_ex attr = attributes();
  attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  use(attr);
  send(1, 1);
  send(2, 1);
  ASSERT_EQ(start(), 0);
  EXPECT_EQ(cq_->wr_id, 1u);
  std::thread([&] {
    ibv_poll_cq_attr none{};
    EXPECT_EQ(ibv_start_poll(cq_, &none), EINVAL);  // a poll has been started
    EXPECT_EQ(ibv_next_poll(cq_), 0);
    EXPECT_EQ(cq_->wr_id, 2u);
    ibv_end_poll(cq_);
  }).join();
  send(3, 1);
  ASSERT_EQ(start(), 0);
  EXPECT_EQ(cq_->wr_id, 3u);
  ibv_end_poll(cq_);
}

TEST_F(CqEx, IgnoredOverrunLosesOnlyCompletions) {
  ibv_cq_init_attr_ex attr = attributes();
  attr.cqe = 1;
  attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  attr.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  use(attr);
  for (uint64_t i = 1; i <= 3; ++i) send(i, 1);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).wr_id, 1u);
  send(4, 1);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).wr_id, 4u);
}

TEST_F(CqEx, RejectsInvalidAttributes) {
  const auto refused = [&](const std::function<void(ibv_cq_init_attr_ex&)>& change) {
    ibv_cq_init_attr_ex attr = attributes();
    change(attr);
    errno = 0;
    EXPECT_EQ(ibv_create_cq_ex(context_.get(), &attr), nullptr);
    return errno;
  };
  EXPECT_EQ(refused([](auto& a) { a.wc_flags = IBV_WC_EX_WITH_TM_INFO; }), EOPNOTSUPP);
  EXPECT_EQ(refused([](auto& a) { a.wc_flags = 1 << 20; }), EOPNOTSUPP);
  EXPECT_EQ(refused([](auto& a) { a.cqe = 0; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.cqe = UINT32_MAX; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.comp_vector = 100'000; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.comp_mask = 4; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) {
              a.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
              a.flags = 4;
            }),
            EOPNOTSUPP);
  EXPECT_EQ(refused([](auto& a) { a.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD; }), EINVAL);
  EXPECT_EQ(refused([&](auto& a) {
              a.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
              a.parent_domain = a_.pd.get();
            }),
            EINVAL);
}

TEST_F(CqEx, AcceptsModeration) {
  ibv_modify_cq_attr attr{};
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate = {16, 100};
  EXPECT_EQ(ibv_modify_cq(a_.cq.get(), &attr), 0);
  attr.attr_mask = IBV_CQ_ATTR_RESERVED;
  EXPECT_EQ(ibv_modify_cq(a_.cq.get(), &attr), EINVAL);
}

}  // namespace
}  // namespace verbena::test
