// Completion queues that queue pairs of several lanes complete to.
#include <fcntl.h>
#include <poll.h>

#include <algorithm>
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

ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
  return attr.qp_state;
}

// A queue pair of the second lane overruns its completion queue, which other lanes use too.
class SharedCqOverrun : public LanesTest {
 protected:
  void SetUp() override {
    LanesTest::SetUp();
    peer_ = Endpoint(pd_.get());  // in the first lane
    cq_ = make_cq(context_.get(), 4);
    filling_ = make_qp(pd_.get(), cq_.get(), cq_.get());
    region_ = Region(pd_.get(), 4096);
    ASSERT_NE(lane_of(filling_.get()), lane_of(peer_.qp.get()));
    connect_both(filling_.get(), peer_.qp.get());
  }
  // No thread polls meanwhile.
  void overrun() {
    for (uint64_t i = 0; i < 5; ++i) {
      ASSERT_EQ(post(filling_.get(), IBV_WR_RDMA_WRITE, i, region_.sge(0, 8), region_.address(64),
                     region_.mr->rkey),
                0);
    }
  }
  using Events = std::map<ibv_event_type, std::vector<const void*>>;
  Events take_events(int count) {
    Events events;
    for (int i = 0; i < count; ++i) {
      ibv_async_event event = wait_for_async_event(context_.get());
      events[event.event_type].push_back(event.element.qp);
      ibv_ack_async_event(&event);
    }
    return events;
  }

  Endpoint peer_;
  CqPtr cq_;
  QpPtr filling_;
  Region region_;
};

TEST_F(SharedCqOverrun, FailsIdleQueuePairsOfOtherLanes) {
  Endpoint idle_peer(pd_.get());
  QpPtr idle = make_qp(pd_.get(), idle_peer.cq.get(), cq_.get());
  ASSERT_NE(lane_of(filling_.get()), lane_of(idle.get()));
  connect_both(idle.get(), idle_peer.qp.get());
  ASSERT_EQ(post_receive(idle.get(), 9, region_.sge(256, 64)), 0);
  overrun();
  Events events = take_events(3);
  EXPECT_EQ(events[IBV_EVENT_CQ_ERR], std::vector<const void*>{cq_.get()});
  EXPECT_EQ(events[IBV_EVENT_QP_FATAL].size(), 2u);
  for (const QpPtr* qp : {&filling_, &idle}) {
    EXPECT_EQ(std::ranges::count(events[IBV_EVENT_QP_FATAL], qp->get()), 1);
    EXPECT_EQ(state_of(qp->get()), IBV_QPS_ERR);
  }
  for (const Endpoint* other : {&peer_, &idle_peer}) {
    EXPECT_EQ(state_of(other->qp.get()), IBV_QPS_RTS);
  }
}

// Shared receive queues are in the first lane.
TEST_F(SharedCqOverrun, RaisesSrqErrorForAnXrcQueue) {
  ibv_xrcd* const xrcd = open_xrc_domain(context_.get());
  ASSERT_NE(xrcd, nullptr);
  ibv_srq_init_attr_ex init{};
  init.attr.max_wr = 4;
  init.attr.max_sge = 1;
  init.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  init.srq_type = IBV_SRQT_XRC;
  init.pd = pd_.get();
  init.xrcd = xrcd;
  init.cq = cq_.get();
  ibv_srq* const srq = ibv_create_srq_ex(context_.get(), &init);
  ASSERT_NE(srq, nullptr);
  overrun();
  Events events = take_events(3);
  EXPECT_EQ(events[IBV_EVENT_CQ_ERR], std::vector<const void*>{cq_.get()});
  EXPECT_EQ(events[IBV_EVENT_QP_FATAL], std::vector<const void*>{filling_.get()});
  EXPECT_EQ(events[IBV_EVENT_SRQ_ERR], std::vector<const void*>{srq});
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_close_xrcd(xrcd), 0);
}

}  // namespace
}  // namespace verbena::test
