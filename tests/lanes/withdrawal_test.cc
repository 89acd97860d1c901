// Memory that is withdrawn while queue pairs of several lanes write into it. After the call that
// withdraws it has returned, or the work request has completed, no byte changes any more.
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "tests/lanes/lanes_support.h"

namespace verbena::test {
namespace {

constexpr size_t kWriters = kLanes - 1;
constexpr size_t kWriterBytes = size_t{16} << 10;  // of each writer
constexpr size_t kTargetBytes = kWriters * kWriterBytes;
constexpr uint8_t kCanary = 0xEE;

// Where writers write to.
struct Target {
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint32_t generation = 0;
};

// A thread that writes into its slice of the target until it is refused. It then connects anew and
// waits for the next target.
class Writer {
 public:
  Writer(ibv_pd* pd, size_t index) : index_(index), pair_(pd), source_(pd, kWriterBytes) {
    fill(source_.at(0, kWriterBytes), index);
  }

  void run() {
    while (!stopped_) {
      const Target target = next_target();
      if (target.generation == refused_generation_) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_EQ(post(pair_.a.qp.get(), IBV_WR_RDMA_WRITE, 1, source_.sge(0, kWriterBytes),
                     target.address + index_ * kWriterBytes, target.rkey),
                0);
      const ibv_wc wc = take(pair_.a.cq.get());
      if (wc.status == IBV_WC_SUCCESS) {
        writes_.fetch_add(1);
        continue;
      }
      EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(wc.status);
      pair_.reconnect();
      refused_generation_ = target.generation;
    }
  }
  void stop() { stopped_ = true; }

  // For the owner of the memory.
  void set_target(const Target& target) {
    const std::lock_guard lock(mutex_);
    target_ = target;
  }
  void expect_writes() {
    const uint64_t before = writes_;
    EXPECT_TRUE(within_ms(60'000, [&] { return writes_ >= before + 2; }));
  }
  void expect_refusal(uint32_t generation) {
    EXPECT_TRUE(within_ms(60'000, [&] { return refused_generation_ == generation; }));
  }
  // The queue pair that the memory belongs to. The writer replaces it after a refusal.
  Endpoint& target_end() { return pair_.b; }

 private:
  Target next_target() {
    const std::lock_guard lock(mutex_);
    return target_;
  }

  const size_t index_;
  Pair pair_;
  Region source_;
  std::mutex mutex_;
  Target target_;
  std::atomic<uint32_t> refused_generation_{0};  // the first target has generation 1
  std::atomic<uint64_t> writes_{0};
  std::atomic<bool> stopped_{false};
};

int bind_type1(const Endpoint& owner, ibv_mw* mw, ibv_mr* mr, uint64_t address, uint64_t bytes) {
  ibv_mw_bind bind{};
  bind.wr_id = 7;
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_info = {mr, address, bytes, IBV_ACCESS_REMOTE_WRITE};
  const int code = ibv_bind_mw(owner.qp.get(), mw, &bind);
  if (code == 0) take(owner.cq.get(), 7);
  return code;
}

class Withdrawal : public LanesTest {
 protected:
  void SetUp() override {
    LanesTest::SetUp();
    for (size_t i = 0; i < kWriters; ++i) {
      writers_[i] = std::make_unique<Writer>(pd_.get(), i);
      threads_[i] = std::thread([this, i] { writers_[i]->run(); });
    }
  }
  void TearDown() override {
    for (auto& writer : writers_) writer->stop();
    for (std::thread& thread : threads_) thread.join();
    for (auto& writer : writers_) writer.reset();
    LanesTest::TearDown();
  }

  // All writers write to `memory` by the key until `withdraw` returns.
  template <typename Withdraw>
  void withdraw_while_written(std::vector<uint8_t>& memory, uint32_t rkey, Withdraw withdraw) {
    const uint32_t generation = ++generation_;
    const auto address = reinterpret_cast<uint64_t>(memory.data());
    for (auto& writer : writers_) writer->set_target({address, rkey, generation});
    for (auto& writer : writers_) writer->expect_writes();
    withdraw();
    std::ranges::fill(memory, kCanary);
    for (auto& writer : writers_) writer->expect_refusal(generation);
    EXPECT_EQ(std::ranges::count(memory, kCanary), static_cast<ptrdiff_t>(memory.size()));
  }

  std::array<std::unique_ptr<Writer>, kWriters> writers_;
  std::array<std::thread, kWriters> threads_;
  uint32_t generation_ = 0;
};

TEST_F(Withdrawal, DeregisteredMemoryDoesNotChange) {
  std::vector<uint8_t> memory(kTargetBytes);
  for (size_t i = 0; i < stress_rounds(40) && !HasFailure(); ++i) {
    MrPtr mr(ibv_reg_mr(pd_.get(), memory.data(), kTargetBytes, kAllAccess));
    ASSERT_NE(mr, nullptr);
    withdraw_while_written(memory, mr->rkey, [&] { mr.reset(); });
  }
}

TEST_F(Withdrawal, FormerMemoryOfARegionDoesNotChange) {
  std::array<std::vector<uint8_t>, 2> memory{std::vector<uint8_t>(kTargetBytes),
                                             std::vector<uint8_t>(kTargetBytes)};
  MrPtr mr(ibv_reg_mr(pd_.get(), memory[0].data(), kTargetBytes, kAllAccess));
  ASSERT_NE(mr, nullptr);
  for (size_t i = 0; i < stress_rounds(40) && !HasFailure(); ++i) {
    withdraw_while_written(memory[i % 2], mr->rkey, [&] {
      EXPECT_EQ(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr,
                             memory[(i + 1) % 2].data(), kTargetBytes, 0),
                0);
    });
  }
}

TEST_F(Withdrawal, MemoryOfADeallocatedWindowDoesNotChange) {
  Pair owner(pd_.get());
  Region region(pd_.get(), kTargetBytes);
  for (size_t i = 0; i < stress_rounds(40) && !HasFailure(); ++i) {
    MwPtr mw(ibv_alloc_mw(pd_.get(), IBV_MW_TYPE_1));
    ASSERT_NE(mw, nullptr);
    ASSERT_EQ(bind_type1(owner.a, mw.get(), region.mr.get(), region.address(), kTargetBytes), 0);
    withdraw_while_written(region.memory, mw->rkey, [&] { mw.reset(); });
  }
}

TEST_F(Withdrawal, FormerMemoryOfAType1WindowDoesNotChange) {
  Pair owner(pd_.get());
  std::array<Region, 2> regions{Region(pd_.get(), kTargetBytes), Region(pd_.get(), kTargetBytes)};
  MwPtr mw(ibv_alloc_mw(pd_.get(), IBV_MW_TYPE_1));
  ASSERT_NE(mw, nullptr);
  ASSERT_EQ(bind_type1(owner.a, mw.get(), regions[0].mr.get(), regions[0].address(), kTargetBytes),
            0);
  for (size_t i = 0; i < stress_rounds(40) && !HasFailure(); ++i) {
    const Region& next = regions[(i + 1) % 2];
    withdraw_while_written(regions[i % 2].memory, mw->rkey, [&] {
      EXPECT_EQ(bind_type1(owner.a, mw.get(), next.mr.get(), next.address(), kTargetBytes), 0);
    });
  }
}

// Each queue pair has a window of its own, on its slice.
TEST_F(Withdrawal, MemoryOfAnInvalidatedType2WindowDoesNotChange) {
  Region region(pd_.get(), kTargetBytes);
  std::array<MwPtr, kWriters> windows;
  for (MwPtr& mw : windows) {
    mw.reset(ibv_alloc_mw(pd_.get(), IBV_MW_TYPE_2));
    ASSERT_NE(mw, nullptr);
  }
  for (size_t round = 0; round < stress_rounds(15) && !HasFailure(); ++round) {
    const uint32_t generation = ++generation_;
    for (size_t i = 0; i < kWriters; ++i) {
      Endpoint& end = writers_[i]->target_end();
      ibv_send_wr wr{}, *bad = nullptr;
      wr.wr_id = 8;
      wr.opcode = IBV_WR_BIND_MW;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.bind_mw.mw = windows[i].get();
      wr.bind_mw.rkey = windows[i]->rkey = ibv_inc_rkey(windows[i]->rkey);
      wr.bind_mw.bind_info = {region.mr.get(), region.address(i * kWriterBytes), kWriterBytes,
                              IBV_ACCESS_REMOTE_WRITE};
      ASSERT_EQ(ibv_post_send(end.qp.get(), &wr, &bad), 0);
      take(end.cq.get(), 8);
      writers_[i]->set_target({region.address(), windows[i]->rkey, generation});
    }
    for (size_t i = 0; i < kWriters; ++i) {
      writers_[i]->expect_writes();
      Endpoint& end = writers_[i]->target_end();
      ibv_send_wr wr{}, *bad = nullptr;
      wr.wr_id = 9;
      wr.opcode = IBV_WR_LOCAL_INV;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.invalidate_rkey = windows[i]->rkey;
      ASSERT_EQ(ibv_post_send(end.qp.get(), &wr, &bad), 0);
      take(end.cq.get(), 9);
      std::ranges::fill(region.at(i * kWriterBytes, kWriterBytes), kCanary);
      writers_[i]->expect_refusal(generation);
      EXPECT_EQ(std::ranges::count(region.at(i * kWriterBytes, kWriterBytes), kCanary),
                static_cast<ptrdiff_t>(kWriterBytes));
    }
  }
}

class Rebinds : public LanesTest {
 protected:
  void rebind(size_t times) {
    Pair pair(pd_.get());
    Region region(pd_.get(), 4096);
    MwPtr mw(ibv_alloc_mw(pd_.get(), IBV_MW_TYPE_1));
    ASSERT_NE(mw, nullptr);
    for (size_t i = 0; i < times && !HasFailure(); ++i) {
      ASSERT_EQ(bind_type1(pair.a, mw.get(), region.mr.get(), region.address(i % 64), 64), 0);
    }
  }
};

TEST_F(Rebinds, OfSeveralLanesDoNotWaitForEachOther) {
  run_threads(kLanes, [&](size_t) { rebind(stress_rounds(2000)); });
}

// Such calls hold the lock of the first lane while they wait for those of the others.
TEST_F(Rebinds, DoNotWaitForCallsThatStopAllLanes) {
  ibv_srq_init_attr init{};
  init.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
  ibv_srq* const srq = ibv_create_srq(pd_.get(), &init);
  ASSERT_NE(srq, nullptr);
  std::atomic<size_t> rebinding{kLanes};
  run_threads(kLanes + 2, [&](size_t i) {
    if (i < kLanes) {
      rebind(stress_rounds(5000));
      --rebinding;
      return;
    }
    for (size_t n = 0; rebinding != 0; ++n) {
      if (i == kLanes) {
        ibv_srq_attr attr{
            .max_wr = 16 + static_cast<uint32_t>(n % 1000), .max_sge = 0, .srq_limit = 0};
        EXPECT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
      } else {
        EXPECT_EQ(in_child([] { return 3; }), 3);
      }
    }
  });
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

}  // namespace
}  // namespace verbena::test
