// Every operation between two queue pairs of one process, with a check of the data.
#include <arpa/inet.h>

#include <array>
#include <atomic>
#include <thread>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

class Data : public LoopbackTest {
 protected:
  void fill(Side& side, size_t offset, size_t length, uint8_t seed) {
    for (size_t i = 0; i < length; ++i) side.memory[offset + i] = pattern(i, seed);
  }
  static uint8_t pattern(size_t i, uint8_t seed) {
    return static_cast<uint8_t>(i * 7 + i / 251 + seed);
  }
  void expect_pattern(const Side& side, size_t offset, size_t length, uint8_t seed) {
    for (size_t i = 0; i < length; ++i) {
      ASSERT_EQ(side.memory[offset + i], pattern(i, seed)) << "byte " << i << " of " << length;
    }
  }
  void expect_success(const ibv_wc& wc, ibv_wc_opcode opcode, uint64_t wr_id = 77) {
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.opcode, opcode);
    EXPECT_EQ(wc.wr_id, wr_id);
  }
};

constexpr uint32_t kLengths[] = {0, 1, 3, 255, 1024, 1025, 4096, 65536, 300'001};

TEST_F(Data, SendDeliversTheData) {
  uint8_t seed = 1;
  for (const uint32_t length : kLengths) {
    SCOPED_TRACE(length);
    fill(a_, 0, length, ++seed);
    ASSERT_EQ(b_.receive(5, 100, length), 0);
    ibv_sge sge = a_.sge(0, length);
    ibv_send_wr wr = rdma(IBV_WR_SEND, &sge, b_, 0);
    ASSERT_EQ(a_.send(wr), 0);
    expect_success(wait_for_completion(a_.cq.get()), IBV_WC_SEND);
    const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
    expect_success(wc, IBV_WC_RECV, 5);
    EXPECT_EQ(wc.byte_len, length);
    EXPECT_EQ(wc.wc_flags, 0u);
    EXPECT_EQ(wc.qp_num, b_.qp->qp_num);
    expect_pattern(b_, 100, length, seed);
  }
}

TEST_F(Data, SendWithImmediateDeliversBoth) {
  fill(a_, 0, 2000, 9);
  ASSERT_EQ(b_.receive(5, 0, 4000), 0);
  ibv_sge sge = a_.sge(0, 2000);
  ibv_send_wr wr = rdma(IBV_WR_SEND_WITH_IMM, &sge, b_, 0);
  wr.imm_data = htonl(0x12345678);
  ASSERT_EQ(a_.send(wr), 0);
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_SEND);
  const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  expect_success(wc, IBV_WC_RECV, 5);
  EXPECT_EQ(wc.wc_flags, unsigned{IBV_WC_WITH_IMM});
  EXPECT_EQ(wc.imm_data, htonl(0x12345678));
  expect_pattern(b_, 0, 2000, 9);
}

TEST_F(Data, WriteChangesExactlyItsRange) {
  uint8_t seed = 20;
  for (const uint32_t length : kLengths) {
    SCOPED_TRACE(length);
    fill(a_, 0, length, ++seed);
    b_.memory[200 + length] = 0xEE;
    ibv_sge sge = a_.sge(0, length);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 200);
    ASSERT_EQ(a_.send(wr), 0);
    expect_success(wait_for_completion(a_.cq.get()), IBV_WC_RDMA_WRITE);
    expect_pattern(b_, 200, length, seed);
    EXPECT_EQ(b_.memory[200 + length], 0xEE);
  }
}

TEST_F(Data, WriteWithImmediateCompletesAReceive) {
  fill(a_, 0, 5000, 3);
  ASSERT_EQ(b_.receive(6, 0, 0), 0);
  ibv_sge sge = a_.sge(0, 5000);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE_WITH_IMM, &sge, b_, 40);
  wr.imm_data = htonl(42);
  ASSERT_EQ(a_.send(wr), 0);
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_RDMA_WRITE);
  const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  expect_success(wc, IBV_WC_RECV_RDMA_WITH_IMM, 6);
  EXPECT_EQ(wc.imm_data, htonl(42));
  EXPECT_EQ(wc.wc_flags, unsigned{IBV_WC_WITH_IMM});
  EXPECT_EQ(wc.byte_len, 5000u);
  expect_pattern(b_, 40, 5000, 3);
}

TEST_F(Data, ReadReturnsTheData) {
  uint8_t seed = 50;
  for (const uint32_t length : kLengths) {
    SCOPED_TRACE(length);
    fill(b_, 300, length, ++seed);
    ibv_sge sge = a_.sge(10, length);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_READ, &sge, b_, 300);
    ASSERT_EQ(a_.send(wr), 0);
    const ibv_wc wc = wait_for_completion(a_.cq.get());
    expect_success(wc, IBV_WC_RDMA_READ);
    EXPECT_EQ(wc.byte_len, length);
    expect_pattern(a_, 10, length, seed);
  }
}

TEST_F(Data, AtomicsReturnTheOriginalValue) {
  auto* target = reinterpret_cast<uint64_t*>(b_.memory.data() + 64);
  auto* result = reinterpret_cast<uint64_t*>(a_.memory.data() + 8);
  ibv_sge sge = a_.sge(8, 8);

  *target = 40;
  ibv_send_wr add = rdma(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, b_, 64);
  add.wr.atomic.compare_add = 2;
  ASSERT_EQ(a_.send(add), 0);
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_FETCH_ADD);
  EXPECT_EQ(*result, 40u);
  EXPECT_EQ(*target, 42u);

  ibv_send_wr swap = rdma(IBV_WR_ATOMIC_CMP_AND_SWP, &sge, b_, 64);
  swap.wr.atomic.compare_add = 42;
  swap.wr.atomic.swap = 7;
  ASSERT_EQ(a_.send(swap), 0);
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_COMP_SWAP);
  EXPECT_EQ(*result, 42u);
  EXPECT_EQ(*target, 7u);

  ASSERT_EQ(a_.send(swap), 0);  // does not match now
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_COMP_SWAP);
  EXPECT_EQ(*result, 7u);
  EXPECT_EQ(*target, 7u);
}

TEST_F(Data, InlineDataIsCopiedWhenPosted) {
  std::array<uint8_t, 200> unregistered{};
  for (size_t i = 0; i < unregistered.size(); ++i) unregistered[i] = pattern(i, 11);
  ibv_sge sge{reinterpret_cast<uint64_t>(unregistered.data()), 200, 0};
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  wr.send_flags |= IBV_SEND_INLINE;
  ASSERT_EQ(a_.send(wr), 0);
  unregistered.fill(0);
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_RDMA_WRITE);
  expect_pattern(b_, 0, 200, 11);
}

TEST_F(Data, GathersAndScatters) {
  fill(a_, 0, 3000, 5);
  ibv_sge out[3] = {a_.sge(0, 1000), a_.sge(1000, 1), a_.sge(1001, 1999)};
  ibv_sge in[2] = {b_.sge(5000, 10), b_.sge(100, 4000)};
  ibv_recv_wr receive{1, nullptr, in, 2};
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(ibv_post_recv(b_.qp.get(), &receive, &bad_receive), 0);
  ibv_send_wr wr = rdma(IBV_WR_SEND, out, b_, 0);
  wr.num_sge = 3;
  ASSERT_EQ(a_.send(wr), 0);
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_SEND);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).byte_len, 3000u);
  for (size_t i = 0; i < 3000; ++i) {
    ASSERT_EQ(b_.memory[i < 10 ? 5000 + i : 100 + i - 10], pattern(i, 5)) << i;
  }
}

TEST_F(Data, UnsignaledRequestsCompleteSilently) {
  ibv_sge sge = a_.sge(0, 8);
  for (int i = 0; i < 500; ++i) {  // more than the send queue can hold
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    wr.wr_id = static_cast<uint64_t>(i);
    wr.send_flags = i % 10 == 9 ? unsigned{IBV_SEND_SIGNALED} : 0;
    ASSERT_EQ(a_.send(wr), 0) << i;
    if (i % 10 == 9) {
      expect_success(wait_for_completion(a_.cq.get()), IBV_WC_RDMA_WRITE, static_cast<uint64_t>(i));
    }
  }
}

TEST_F(Data, WriteCompletesAlthoughTheTargetDoesNotPoll) {
  // Only a's queue is polled: the application of the target takes no part.
  fill(a_, 0, 100'000, 77);
  ibv_sge sge = a_.sge(0, 100'000);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(ibv_req_notify_cq(a_.cq.get(), 0), 0);
  ASSERT_EQ(a_.send(wr), 0);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(a_.channel.get(), &cq, &cq_context), 0);
  ibv_ack_cq_events(cq, 1);
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_RDMA_WRITE);
  expect_pattern(b_, 0, 100'000, 77);
}

TEST_F(Data, Type1WindowGrantsOnlyItsRange) {
  MwPtr mw(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_1));
  ASSERT_NE(mw, nullptr);
  ibv_mw_bind bind{};
  bind.wr_id = 3;
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_info = {b_.mr.get(), b_.address(4096), 4096, IBV_ACCESS_REMOTE_WRITE};
  const uint32_t before = mw->rkey;
  ASSERT_EQ(ibv_bind_mw(b_.qp.get(), mw.get(), &bind), 0);
  EXPECT_EQ(mw->rkey, ibv_inc_rkey(before));
  expect_success(wait_for_completion(b_.cq.get()), IBV_WC_BIND_MW, 3);

  fill(a_, 0, 4096, 31);
  ibv_sge sge = a_.sge(0, 4096);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 4096);
  wr.wr.rdma.rkey = mw->rkey;
  ASSERT_EQ(a_.send(wr), 0);
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_RDMA_WRITE);
  expect_pattern(b_, 4096, 4096, 31);

  // The region cannot be deregistered while a window is bound to it.
  EXPECT_EQ(ibv_dereg_mr(b_.mr.get()), EBUSY);
  // An access outside the window but inside the region is rejected.
  wr.wr.rdma.remote_addr = b_.address(0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Data, Type2WindowCanBeInvalidatedAndBoundAgain) {
  MwPtr mw(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_2));
  ASSERT_NE(mw, nullptr);
  const auto bind = [&] {
    const uint32_t key = ibv_inc_rkey(mw->rkey);
    ibv_send_wr wr{};
    wr.wr_id = 4;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw.mw = mw.get();
    wr.bind_mw.rkey = key;
    wr.bind_mw.bind_info = {b_.mr.get(), b_.address(0), 8192, IBV_ACCESS_REMOTE_READ};
    EXPECT_EQ(b_.send(wr), 0);
    expect_success(wait_for_completion(b_.cq.get()), IBV_WC_BIND_MW, 4);
    return key;
  };
  const auto read = [&](uint32_t key) {
    ibv_sge sge = a_.sge(0, 64);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_READ, &sge, b_, 128);
    wr.wr.rdma.rkey = key;
    EXPECT_EQ(a_.send(wr), 0);
    return wait_for_completion(a_.cq.get()).status;
  };

  uint32_t key = bind();
  EXPECT_EQ(read(key), IBV_WC_SUCCESS);
  // The peer invalidates the key with a SEND.
  ASSERT_EQ(b_.receive(9, 0, 64), 0);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr send = rdma(IBV_WR_SEND_WITH_INV, &sge, b_, 0);
  send.invalidate_rkey = key;
  ASSERT_EQ(a_.send(send), 0);
  expect_success(wait_for_completion(a_.cq.get()), IBV_WC_SEND);
  const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
  expect_success(wc, IBV_WC_RECV, 9);
  EXPECT_EQ(wc.wc_flags, unsigned{IBV_WC_WITH_INV});
  EXPECT_EQ(wc.invalidated_rkey, key);

  key = bind();
  EXPECT_EQ(read(key), IBV_WC_SUCCESS);
  ibv_send_wr local{};
  local.wr_id = 8;
  local.opcode = IBV_WR_LOCAL_INV;
  local.send_flags = IBV_SEND_SIGNALED;
  local.invalidate_rkey = key;
  ASSERT_EQ(b_.send(local), 0);
  expect_success(wait_for_completion(b_.cq.get()), IBV_WC_LOCAL_INV, 8);
  EXPECT_EQ(read(key), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Data, TwoThreadsCanPollOneQueue) {
  ASSERT_EQ(ibv_resize_cq(a_.cq.get(), 1000),
            0);  // completions may be added faster than they are polled
  std::atomic<int> found{0};
  const auto poll = [&] {
    ibv_wc wc{};
    while (found < 1000) {
      const int n = ibv_poll_cq(a_.cq.get(), 1, &wc);
      ASSERT_GE(n, 0);
      if (n > 0) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        ++found;
      }
    }
  };
  std::thread one(poll), two(poll);
  ibv_sge sge = a_.sge(0, 64);
  for (int posted = 0; posted < 1000;) {
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    if (a_.send(wr) == 0) ++posted;
  }
  one.join();
  two.join();
  EXPECT_EQ(found, 1000);
}

}  // namespace
}  // namespace verbena::test
