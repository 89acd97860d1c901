// Lanes that send while the address of their interface, or the interface itself, is removed.
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "tests/lanes/lanes_support.h"

namespace verbena::test {
namespace {

constexpr const char* kMakeInterface =
    "ip link add stress type veth peer name stress_peer 2>/dev/null && "
    "ip link set stress addrgenmode none && ip address add 10.9.0.1/24 dev stress && "
    "ip link set stress_peer up && ip link set stress up";
constexpr uint32_t kBytes = 16 << 10;

bool run(const std::string& command) { return std::system(command.c_str()) == 0; }

ContextPtr open_device(const std::string& name) {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  ibv_context* opened = nullptr;
  for (int i = 0; i < count && opened == nullptr; ++i) {
    if (name == ibv_get_device_name(list[i])) opened = ibv_open_device(list[i]);
  }
  ibv_free_device_list(list);
  return ContextPtr(opened);
}

// A thread with a lane. It writes to a partner and connects again after an error.
class Sender {
 public:
  explicit Sender(ibv_pd* pd) : pd_(pd), cq_(make_cq(pd->context)), region_(pd, 2 * kBytes) {
    connect();
  }
  uint64_t written() const { return written_; }
  // One WRITE. False: it failed.
  bool write() {
    const uint64_t seed = written_ + 1;
    fill(region_.at(0, kBytes), seed);
    if (post(qp_.get(), IBV_WR_RDMA_WRITE, seed, region_.sge(0, kBytes), region_.address(kBytes),
             region_.mr->rkey) != 0) {
      return false;
    }
    const ibv_wc wc = take(cq_.get());
    EXPECT_EQ(wc.wr_id, seed);
    if (wc.status != IBV_WC_SUCCESS) return false;
    EXPECT_TRUE(has_pattern(region_.at(kBytes, kBytes), seed));
    ++written_;
    return true;
  }
  // False: the device has no address now, or is gone.
  bool connect() {
    qp_ = make_qp(pd_, cq_.get(), cq_.get());
    peer_ = make_qp(pd_, cq_.get(), cq_.get());
    return connect_to(qp_.get(), peer_->qp_num) == 0 && connect_to(peer_.get(), qp_->qp_num) == 0;
  }
  uint32_t lane() const { return lane_of(qp_.get()); }

 private:
  ibv_pd* const pd_;
  CqPtr cq_;  // of both: hence the thread has one lane
  Region region_;
  QpPtr qp_, peer_;
  std::atomic<uint64_t> written_{0};
};

class Interface : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!run(kMakeInterface)) GTEST_SKIP() << "this user may not make network interfaces";
    ASSERT_TRUE(within_ms(20'000, [&] {
      context_ = open_device("verbena_stress");
      return context_ != nullptr;
    }));
    pd_.reset(ibv_alloc_pd(context_.get()));
    ASSERT_NE(pd_, nullptr);
    for (auto& sender : senders_) sender = std::make_unique<Sender>(pd_.get());
    for (size_t i = 0; i < kLanes; ++i) {
      for (size_t j = 0; j < i; ++j) EXPECT_NE(senders_[i]->lane(), senders_[j]->lane());
    }
  }
  void TearDown() override { (void)run("ip link delete stress 2>/dev/null"); }
  // Each of them has written since.
  void expect_progress() {
    for (const auto& sender : senders_) {
      const uint64_t before = sender->written();
      EXPECT_TRUE(within_ms(60'000, [&] { return sender->written() > before; }));
    }
  }

  ContextPtr context_;
  PdPtr pd_;
  std::array<std::unique_ptr<Sender>, kLanes> senders_;
};

TEST_F(Interface, ItsLanesContinueAfterTheAddressWasRemovedAndAdded) {
  std::atomic<bool> done{false};
  run_threads(kLanes + 1, [&](size_t thread) {
    if (thread < kLanes) {
      Sender& sender = *senders_[thread];
      while (!done && !HasFailure()) {
        if (sender.write()) continue;
        while (!sender.connect() && !HasFailure()) {  // the device has no address now
        }
      }
      return;
    }
    for (size_t i = 0; i < stress_rounds(8) && !HasFailure(); ++i) {
      EXPECT_TRUE(run("ip address delete 10.9.0.1/24 dev stress"));
      EXPECT_TRUE(run("ip address add 10.9.0.1/24 dev stress"));
      expect_progress();
    }
    done = true;
  });
}

TEST_F(Interface, ItsRemovalFailsTheQueuePairsOfAllLanes) {
  run_threads(kLanes + 1, [&](size_t thread) {
    if (thread < kLanes) {
      Sender& sender = *senders_[thread];
      while (sender.write()) {
      }
      EXPECT_FALSE(sender.connect() && sender.write());
      return;
    }
    expect_progress();
    EXPECT_TRUE(run("ip link delete stress"));
  });
  ibv_async_event event{};
  EXPECT_TRUE(within_ms(20'000, [&] {
    event = wait_for_async_event(context_.get());
    ibv_ack_async_event(&event);
    return event.event_type == IBV_EVENT_DEVICE_FATAL || HasFailure();
  }));
}

}  // namespace
}  // namespace verbena::test
