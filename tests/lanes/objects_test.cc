// Objects that are created, changed and destroyed while other lanes are busy.
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/lanes/lanes_support.h"

namespace verbena::test {
namespace {

class Objects : public LanesTest {};

TEST_F(Objects, WithWorkUnderWayAreDestroyedBesideBusyLanes) {
  const BusyLanes busy(pd_.get());
  ChannelPtr channel(ibv_create_comp_channel(context_.get()));
  ASSERT_NE(channel, nullptr);
  run_threads(kLanes, [&](size_t thread) {
    for (size_t i = 0; i < stress_rounds(15) && !HasFailure(); ++i) {
      Region region(pd_.get(), size_t{256} << 10);
      CqPtr send_cq = make_cq(context_.get(), 64, channel.get());
      CqPtr receive_cq = make_cq(context_.get(), 64, channel.get());
      QpPtr a = make_qp(pd_.get(), send_cq.get(), receive_cq.get());
      QpPtr b = make_qp(pd_.get(), receive_cq.get(), send_cq.get());
      connect_both(a.get(), b.get());
      EXPECT_EQ(ibv_req_notify_cq(send_cq.get(), 0), 0);
      for (uint64_t n = 0; n < 8; ++n) {
        EXPECT_EQ(post(a.get(), IBV_WR_RDMA_WRITE, n, region.sge(0, 32 << 10),
                       region.address(64 << 10), region.mr->rkey),
                  0);
        EXPECT_EQ(post(b.get(), IBV_WR_RDMA_READ, n, region.sge(128 << 10, 32 << 10),
                       region.address(0), region.mr->rkey),
                  0);
      }
      if ((thread + i) % 2 == 0) take(send_cq.get());
    }
  });
  busy.expect_progress();
}

// The queue gets its lane while other threads use it.
TEST_F(Objects, CqIsUsedByOtherThreadsWhileItsFirstQueuePairIsCreated) {
  Region region(pd_.get(), 4096);
  Endpoint first(pd_.get());  // the next queue is bound to another lane
  for (size_t i = 0; i < stress_rounds(30) && !HasFailure(); ++i) {
    CqPtr cq = make_cq(context_.get());
    std::atomic<bool> done{false};
    run_threads(3, [&](size_t thread) {
      if (thread == 0) {
        QpPtr a = make_qp(pd_.get(), cq.get(), cq.get());
        Endpoint b(pd_.get());
        connect_both(a.get(), b.qp.get());
        for (uint64_t n = 0; n < 50; ++n) {
          EXPECT_EQ(post(a.get(), IBV_WR_RDMA_WRITE, n, region.sge(0, 64), region.address(64),
                         region.mr->rkey),
                    0);
          take(cq.get(), n);
        }
        done = true;
      }
      for (int n = 0; !done; ++n) {
        EXPECT_EQ(thread == 1 ? ibv_req_notify_cq(cq.get(), 0)
                              : ibv_resize_cq(cq.get(), n % 2 == 0 ? 64 : 300),
                  0);
      }
    });
  }
}

// Creating a queue pair may open a lane, with calls that are cancellation points.
TEST_F(Objects, ACancelledThreadCompletesItsCall) {
  Endpoint first(pd_.get());
  CqPtr cq = make_cq(context_.get());
  QpPtr qp;
  std::thread thread([&] {
    pthread_cancel(pthread_self());
    qp = make_qp(pd_.get(), cq.get(), cq.get());
    pthread_testcancel();
  });
  thread.join();
  ASSERT_NE(qp, nullptr);
  EXPECT_NE(lane_of(qp.get()), lane_of(first.qp.get()));
}

TEST_F(Objects, OfThreadDomainsUseTheLanesOfTheirThreads) {
  std::array<std::atomic<uint32_t>, kLanes> lanes{};
  std::atomic<size_t> made{0};
  run_threads(kLanes, [&](size_t thread) {
    ibv_td_init_attr td_init{};
    ibv_td* const td = ibv_alloc_td(context_.get(), &td_init);
    ASSERT_NE(td, nullptr);
    ibv_parent_domain_init_attr init{};
    init.pd = pd_.get();
    init.td = td;
    {
      PdPtr parent(ibv_alloc_parent_domain(context_.get(), &init));
      ASSERT_NE(parent, nullptr);
      ibv_cq_init_attr_ex attr{};
      attr.cqe = 64;
      attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
      attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
      attr.parent_domain = parent.get();
      CqPtr cq(ibv_cq_ex_to_cq(ibv_create_cq_ex(context_.get(), &attr)));
      ASSERT_NE(cq, nullptr);
      QpPtr a = make_qp(parent.get(), cq.get(), cq.get());
      lanes[thread] = lane_of(a.get());
      ++made;
      EXPECT_TRUE(within_ms(60'000, [&] { return made == kLanes; }));
      QpPtr b = make_qp(parent.get(), cq.get(), cq.get());
      Region region(pd_.get(), 4096);
      connect_both(a.get(), b.get());
      for (uint64_t n = 0; n < stress_rounds(300) && !HasFailure(); ++n) {
        fill(region.at(0, 1024), n);
        EXPECT_EQ(post(a.get(), IBV_WR_RDMA_WRITE, n, region.sge(0, 1024), region.address(2048),
                       region.mr->rkey),
                  0);
        take(cq.get(), n);
        EXPECT_TRUE(has_pattern(region.at(2048, 1024), n));
      }
    }
    EXPECT_EQ(ibv_dealloc_td(td), 0);
  });
  for (size_t i = 0; i < kLanes; ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(lanes[i], lanes[j]);
  }
}

TEST_F(Objects, ConnectWhileAddressesChange) {
  if (std::system("ip address add 192.0.2.1/32 dev lo 2>/dev/null") != 0) {
    GTEST_SKIP() << "this user may not change the addresses of the loopback interface";
  }
  std::atomic<bool> done{false};
  run_threads(kLanes + 1, [&](size_t thread) {
    if (thread == kLanes) {
      for (int i = 2; i < 30; ++i) {
        const std::string address = "192.0.2." + std::to_string(i) + "/32 dev lo";
        EXPECT_EQ(std::system(("ip address add " + address).c_str()), 0);
        if (i % 2 != 0) continue;
        EXPECT_EQ(std::system(("ip address delete " + address).c_str()), 0);
      }
      done = true;
      return;
    }
    for (size_t i = 0; !done || i == 0; ++i) Pair pair(pd_.get());
  });
  EXPECT_EQ(std::system("ip address flush to 192.0.2.0/24 dev lo"), 0);
}

}  // namespace
}  // namespace verbena::test
