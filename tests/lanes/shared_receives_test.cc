// Shared receive queues whose receives are consumed by queue pairs of several lanes at a time.
#include <fcntl.h>
#include <poll.h>

#include <array>
#include <atomic>

#include "tests/lanes/lanes_support.h"

namespace verbena::test {
namespace {

constexpr uint32_t kReceiveBytes = 256;
constexpr uint32_t kBuffers = 32;
constexpr size_t kSenders = kLanes;

using SrqPtr = std::unique_ptr<ibv_srq, Destroy<ibv_destroy_srq>>;

class SharedReceives : public LanesTest {
 protected:
  void SetUp() override {
    LanesTest::SetUp();
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = 2 * kBuffers, .max_sge = 1, .srq_limit = 0};
    srq_.reset(ibv_create_srq(pd_.get(), &init));
    ASSERT_NE(srq_, nullptr);
    buffers_ = Region(pd_.get(), kBuffers * kReceiveBytes);
    sent_ = Region(pd_.get(), kSenders * kReceiveBytes);
  }
  void connect() {
    for (size_t i = 0; i < kSenders; ++i) {
      receivers_[i] = Endpoint(pd_.get(), srq_.get());
      for (size_t j = 0; j < i; ++j) {
        EXPECT_NE(lane_of(receivers_[i].qp.get()), lane_of(receivers_[j].qp.get()));
      }
    }
    for (size_t i = 0; i < kSenders; ++i) {
      senders_[i] = Endpoint(pd_.get());
      connect_both(receivers_[i].qp.get(), senders_[i].qp.get());
    }
  }
  // A message of sender `i`, which has to wait while no receive is posted.
  void send(size_t i, uint64_t seed) {
    const size_t at = i * kReceiveBytes;
    fill(sent_.at(at, kReceiveBytes), seed);
    ASSERT_EQ(post(senders_[i].qp.get(), IBV_WR_SEND, seed, sent_.sge(at, kReceiveBytes)), 0);
    take(senders_[i].cq.get(), seed);
  }
  // A receive belongs to one message only, until it is posted again.
  void receive(size_t i, uint64_t seed) {
    const ibv_wc wc = take(receivers_[i].cq.get());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    ASSERT_LT(wc.wr_id, kBuffers);
    EXPECT_EQ(wc.byte_len, kReceiveBytes);
    EXPECT_TRUE(is_posted_[wc.wr_id].exchange(false)) << "buffer " << wc.wr_id;
    EXPECT_TRUE(has_pattern(buffers_.at(wc.wr_id * kReceiveBytes, kReceiveBytes), seed));
    post_buffer(static_cast<uint32_t>(wc.wr_id));
  }
  void post_buffer(uint32_t n) {
    is_posted_[n] = true;
    EXPECT_EQ(post_receive(srq_.get(), n, buffers_.sge(n * kReceiveBytes, kReceiveBytes)), 0);
  }
  void exchange(size_t thread, size_t messages) {
    for (size_t n = 0; n < messages && !HasFailure(); ++n) {
      const uint64_t seed = 1'000'000 * (thread / 2) + n;
      if (thread % 2 == 0) {
        send(thread / 2, seed);
      } else {
        receive(thread / 2, seed);
      }
    }
  }
  int events_of(ibv_event_type type) {
    int count = 0;
    pollfd fd{context_->async_fd, POLLIN, 0};
    while (poll(&fd, 1, 0) == 1) {
      ibv_async_event event{};
      EXPECT_EQ(ibv_get_async_event(context_.get(), &event), 0);
      count += event.event_type == type ? 1 : 0;
      ibv_ack_async_event(&event);
    }
    return count;
  }

  Region buffers_, sent_;
  SrqPtr srq_;
  std::array<Endpoint, kSenders> receivers_, senders_;
  std::array<std::atomic<bool>, kBuffers> is_posted_{};
};

TEST_F(SharedReceives, CompleteOnceWithTheDataOfTheirMessage) {
  connect();
  for (uint32_t n = 0; n < kBuffers; ++n) post_buffer(n);
  run_threads(2 * kSenders, [&](size_t i) { exchange(i, stress_rounds(1500)); });
}

// With two receives for four senders, messages wait for RNR timers all the time.
TEST_F(SharedReceives, AreWaitedForWhileNoneIsPosted) {
  connect();
  for (uint32_t n = 0; n < 2; ++n) post_buffer(n);
  run_threads(2 * kSenders, [&](size_t i) { exchange(i, stress_rounds(150)); });
}

TEST_F(SharedReceives, SurviveAResizeOfTheirQueue) {
  connect();
  for (uint32_t n = 0; n < kBuffers; ++n) post_buffer(n);
  run_threads(2 * kSenders + 1, [&](size_t i) {
    if (i < 2 * kSenders) return exchange(i, stress_rounds(1000));
    for (uint32_t n = 0; n < 200; ++n) {
      ibv_srq_attr attr{
          .max_wr = 2 * kBuffers + (n % 2 == 0 ? 16 * n : 0), .max_sge = 1, .srq_limit = 0};
      EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_MAX_WR), 0);
      EXPECT_EQ(ibv_query_srq(srq_.get(), &attr), 0);
    }
  });
}

TEST_F(SharedReceives, ReachTheirLimitOnce) {
  connect();
  for (uint32_t n = 0; n < kBuffers; ++n) post_buffer(n);
  for (size_t round = 0; round < stress_rounds(30) && !HasFailure(); ++round) {
    ibv_srq_attr attr{.max_wr = 0, .max_sge = 0, .srq_limit = kBuffers - 2};
    ASSERT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_LIMIT), 0);
    std::array<std::vector<uint64_t>, kSenders> used;
    run_threads(2 * kSenders, [&](size_t i) {  // without posting receives again
      for (uint64_t n = 0; n < 4; ++n) {
        if (i % 2 == 0) {
          send(i / 2, n);
        } else {
          used[i / 2].push_back(take(receivers_[i / 2].cq.get()).wr_id);
        }
      }
    });
    ibv_async_event event = wait_for_async_event(context_.get());
    EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    ibv_ack_async_event(&event);
    EXPECT_EQ(events_of(IBV_EVENT_SRQ_LIMIT_REACHED), 0);
    for (const auto& numbers : used) {
      for (const uint64_t n : numbers) post_buffer(static_cast<uint32_t>(n));
    }
  }
}

// Each sender is in a lane of its own; all receive queue pairs of the domain are in the first.
TEST_F(SharedReceives, OfAnXrcDomainServeSendersOfAllLanes) {
  ibv_xrcd* const xrcd = open_xrc_domain(context_.get());
  ASSERT_NE(xrcd, nullptr);
  CqPtr cq = make_cq(context_.get());
  Endpoint elsewhere(pd_.get());  // the queue becomes one of several lanes
  QpPtr binds = make_qp(pd_.get(), elsewhere.cq.get(), cq.get());
  ibv_srq_init_attr_ex init{};
  init.attr = {.max_wr = kBuffers, .max_sge = 1, .srq_limit = 0};
  init.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  init.srq_type = IBV_SRQT_XRC;
  init.pd = pd_.get();
  init.xrcd = xrcd;
  init.cq = cq.get();
  SrqPtr srq(ibv_create_srq_ex(context_.get(), &init));
  ASSERT_NE(srq, nullptr);
  uint32_t number = 0;
  ASSERT_EQ(ibv_get_srq_num(srq.get(), &number), 0);
  for (uint32_t n = 0; n < kBuffers; ++n) {
    ASSERT_EQ(post_receive(srq.get(), n, buffers_.sge(n * kReceiveBytes, kReceiveBytes)), 0);
  }
  std::array<CqPtr, kSenders> send_cqs;
  std::array<QpPtr, kSenders> sends, receives;
  for (size_t i = 0; i < kSenders; ++i) {
    send_cqs[i] = make_cq(context_.get());
    ibv_qp_init_attr_ex send{};
    send.qp_type = IBV_QPT_XRC_SEND;
    send.send_cq = send_cqs[i].get();
    send.cap = {16, 0, 1, 0, 0};
    send.comp_mask = IBV_QP_INIT_ATTR_PD;
    send.pd = pd_.get();
    sends[i].reset(ibv_create_qp_ex(context_.get(), &send));
    ibv_qp_init_attr_ex receive{};
    receive.qp_type = IBV_QPT_XRC_RECV;
    receive.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    receive.xrcd = xrcd;
    receives[i].reset(ibv_create_qp_ex(context_.get(), &receive));
    ASSERT_NE(sends[i], nullptr);
    ASSERT_NE(receives[i], nullptr);
    connect_both(sends[i].get(), receives[i].get());
  }
  const size_t messages = stress_rounds(500);
  run_threads(kSenders + 1, [&](size_t i) {
    for (size_t n = 0; i < kSenders && n < messages && !HasFailure(); ++n) {
      ibv_sge sge = sent_.sge(i * kReceiveBytes, kReceiveBytes);
      ibv_send_wr wr{}, *bad = nullptr;
      wr.wr_id = n;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = IBV_WR_SEND_WITH_IMM;
      wr.imm_data = static_cast<uint32_t>(i * messages + n);
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.qp_type.xrc.remote_srqn = number;
      ASSERT_EQ(ibv_post_send(sends[i].get(), &wr, &bad), 0);
      take(send_cqs[i].get(), n);
    }
    std::vector<int> seen(i == kSenders ? kSenders * messages : 0);
    for (size_t n = 0; n < seen.size() && !HasFailure(); ++n) {
      const ibv_wc wc = take(cq.get());
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
      EXPECT_EQ(++seen.at(wc.imm_data), 1);
      EXPECT_EQ(
          post_receive(srq.get(), wc.wr_id, buffers_.sge(wc.wr_id * kReceiveBytes, kReceiveBytes)),
          0);
    }
  });
  for (size_t i = 0; i < kSenders; ++i) {
    sends[i].reset();
    receives[i].reset();
  }
  srq.reset();
  EXPECT_EQ(ibv_close_xrcd(xrcd), 0);
}

}  // namespace
}  // namespace verbena::test
