// Completion queues that queue pairs of several lanes complete to.
#include <fcntl.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <map>

#include "tests/lanes/lanes_support.h"

namespace verbena::test {
namespace {

constexpr uint32_t kDepth = 16;  // messages under way per queue pair
constexpr uint32_t kMessageBytes = 64;

// Queue pair i sends by queue i, and so lives in lane i, and receives by queue i + 1, of the next
// lane. Each message carries its number, and each completion counts once.
class SharedCq : public LanesTest {
 protected:
  void make(ibv_comp_channel* channel = nullptr) {
    for (size_t i = 0; i < kLanes; ++i) {
      cqs_[i] = make_cq(context_.get(), 4 * kDepth, channel);
      alone_[i] = make_qp(pd_.get(), cqs_[i].get(), cqs_[i].get());
    }
    region_ = Region(pd_.get(), 2 * kLanes * kDepth * kMessageBytes);
    for (size_t i = 0; i < kLanes; ++i) {
      qps_[i] = make_qp(pd_.get(), cqs_[i].get(), cqs_[(i + 1) % kLanes].get());
      EXPECT_EQ(lane_of(qps_[i].get()), lane_of(alone_[i].get()));
      for (size_t j = 0; j < i; ++j) EXPECT_NE(lane_of(qps_[i].get()), lane_of(qps_[j].get()));
      of_number_[qps_[i]->qp_num] = i;
    }
    connect_both(qps_[0].get(), qps_[2].get());
    connect_both(qps_[1].get(), qps_[3].get());
    for (size_t i = 0; i < kLanes; ++i) {
      received_[i] = std::vector<std::atomic<int>>(messages_);
      sent_[i] = std::vector<std::atomic<int>>(messages_);
      for (uint32_t n = 0; n < kDepth; ++n) receive(i, n);
    }
  }
  void start() {
    for (size_t i = 0; i < kLanes; ++i) {
      for (uint32_t n = 0; n < kDepth; ++n) send(i);
    }
  }
  ibv_sge buffer(size_t qp, uint32_t n, bool sends) const {
    return region_.sge(((2 * qp + (sends ? 1 : 0)) * kDepth + n) * kMessageBytes, kMessageBytes);
  }
  void receive(size_t qp, uint64_t n) {
    EXPECT_EQ(post_receive(qps_[qp].get(), n, buffer(qp, static_cast<uint32_t>(n), false)), 0);
  }
  // The next one, if any is left. Two threads may send for one queue pair.
  void send(size_t qp) {
    const uint32_t number = next_[qp].fetch_add(1);
    if (number >= messages_) return;
    ibv_send_wr wr{};
    ibv_sge sge = buffer(qp, number % kDepth, true);
    wr.wr_id = number;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND_WITH_IMM;
    wr.imm_data = number;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(qps_[qp].get(), &wr, &bad), 0);
  }
  void handle(const ibv_wc& wc) {
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    const auto found = of_number_.find(wc.qp_num);
    ASSERT_NE(found, of_number_.end());
    const size_t qp = found->second;
    if ((wc.opcode & IBV_WC_RECV) != 0) {
      ++received_[qp].at(wc.imm_data);
      receive(qp, wc.wr_id);
    } else {
      ++sent_[qp].at(wc.wr_id);
      send(qp);
    }
    ++completions_;
  }
  // Returns the number of completions.
  size_t poll_all() {
    size_t found = 0;
    for (const CqPtr& cq : cqs_) {
      std::array<ibv_wc, 4> wc{};
      const int n = ibv_poll_cq(cq.get(), 4, wc.data());
      EXPECT_GE(n, 0);
      for (int i = 0; i < n; ++i) handle(wc[static_cast<size_t>(i)]);
      found += static_cast<size_t>(std::max(n, 0));
    }
    return found;
  }
  bool done() const {
    return completions_ >= 2 * kLanes * messages_ || ::testing::Test::HasFailure();
  }
  void expect_each_once() {
    for (size_t i = 0; i < kLanes; ++i) {
      for (uint32_t n = 0; n < messages_; ++n) {
        EXPECT_EQ(sent_[i][n], 1) << "send " << n;
        EXPECT_EQ(received_[i][n], 1) << "receive " << n;
      }
    }
    EXPECT_EQ(poll_all(), 0u);
  }

  const uint32_t messages_ = static_cast<uint32_t>(stress_rounds(2000));
  ChannelPtr channel_;
  Region region_;
  std::array<CqPtr, kLanes> cqs_;
  std::array<QpPtr, kLanes> alone_, qps_;
  std::map<uint32_t, size_t> of_number_;
  std::array<std::vector<std::atomic<int>>, kLanes> sent_, received_;
  std::array<std::atomic<uint32_t>, kLanes> next_{};
  std::atomic<size_t> completions_{0};
};

TEST_F(SharedCq, DeliversEachCompletionOnceToManyPollers) {
  make();
  start();
  run_threads(stress_threads(), [&](size_t) {
    EXPECT_TRUE(within_ms(60'000, [&] {
      poll_all();
      return done();
    })) << completions_;
  });
  expect_each_once();
}

TEST_F(SharedCq, IsResizedWhileAllLanesUseIt) {
  make();
  start();
  run_threads(3, [&](size_t thread) {
    for (int i = 0; thread == 0 && i < 500; ++i) {
      EXPECT_EQ(ibv_resize_cq(cqs_[static_cast<size_t>(i) % kLanes].get(), i % 2 == 0 ? 512 : 100),
                0);
    }
    EXPECT_TRUE(within_ms(60'000, [&] {
      poll_all();
      return done();
    })) << completions_;
  });
  expect_each_once();
}

TEST_F(SharedCq, WakesSleepersForEachLane) {
  channel_.reset(ibv_create_comp_channel(context_.get()));
  ASSERT_NE(channel_, nullptr);
  ASSERT_EQ(fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK), 0);
  make(channel_.get());
  for (const CqPtr& cq : cqs_) ASSERT_EQ(ibv_req_notify_cq(cq.get(), 0), 0);
  start();
  run_threads(3, [&](size_t) {
    EXPECT_TRUE(within_ms(60'000, [&] {
      pollfd fd{channel_->fd, POLLIN, 0};
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      // The timeout is for the threads that get no event at the end.
      if (poll(&fd, 1, 200) != 1 || ibv_get_cq_event(channel_.get(), &cq, &context) != 0) {
        return done();
      }
      ibv_ack_cq_events(cq, 1);
      EXPECT_EQ(ibv_req_notify_cq(cq, 0), 0);
      ibv_wc wc{};
      while (ibv_poll_cq(cq, 1, &wc) == 1) handle(wc);
      return done();
    })) << completions_;
  });
  expect_each_once();
}

// A queue pair of another lane fails with its next completion.
TEST_F(LanesTest, OverrunFailsQueuePairsOfAllLanes) {
  CqPtr cq = make_cq(context_.get(), 4);
  QpPtr first = make_qp(pd_.get(), cq.get(), cq.get());
  Endpoint first_peer(pd_.get()), second_peer(pd_.get());
  QpPtr second = make_qp(pd_.get(), second_peer.cq.get(), cq.get());
  ASSERT_NE(lane_of(first.get()), lane_of(second.get()));
  connect_both(first.get(), first_peer.qp.get());
  connect_both(second.get(), second_peer.qp.get());
  Region region(pd_.get(), 4096);
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(post(first.get(), IBV_WR_RDMA_WRITE, i, region.sge(0, 8), region.address(64),
                   region.mr->rkey),
              0);
  }
  ibv_async_event error = wait_for_async_event(context_.get());
  ibv_ack_async_event(&error);
  ibv_wc wc{};
  while (ibv_poll_cq(cq.get(), 1, &wc) == 1) {  // there is room again
  }
  ASSERT_EQ(post_receive(second.get(), 9, region.sge(256, 64)), 0);
  ASSERT_EQ(post(second_peer.qp.get(), IBV_WR_SEND, 9, region.sge(512, 64)), 0);
  std::map<ibv_event_type, std::vector<uint32_t>> events{{error.event_type, {0}}};
  for (int i = 0; i < 2; ++i) {
    ibv_async_event event = wait_for_async_event(context_.get());
    events[event.event_type].push_back(
        event.event_type == IBV_EVENT_QP_FATAL ? event.element.qp->qp_num : 0);
    ibv_ack_async_event(&event);
  }
  EXPECT_EQ(events[IBV_EVENT_CQ_ERR].size(), 1u);
  EXPECT_EQ(events[IBV_EVENT_QP_FATAL].size(), 2u);
  for (const QpPtr* qp : {&first, &second}) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ibv_query_qp(qp->get(), &attr, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(attr.qp_state, IBV_QPS_ERR);
  }
}

}  // namespace
}  // namespace verbena::test
