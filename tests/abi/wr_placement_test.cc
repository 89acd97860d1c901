// ATOMIC WRITE and FLUSH, through ibv_wr_* and ibv_post_send.
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "abi/verbs/newer_verbs.h"
#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

constexpr int kFlushAccess =
    static_cast<int>(abi::kAccessFlushGlobal | abi::kAccessFlushPersistent);
constexpr uint8_t kGlobal = abi::kPlacementGlobal;
constexpr uint8_t kPersistent = abi::kPlacementPersistent;

class Placement : public LoopbackTest {
 protected:
  void SetUp() override {
    LoopbackTest::SetUp();
    connect_flushing(kFlushAccess);
  }
  // a's queue pair has the ibv_wr_* interface and no inline data; b's allows `flush_access`.
  void connect_flushing(int flush_access) {
    ibv_qp_init_attr_ex init{};
    init.send_cq = a_.cq.get();
    init.recv_cq = a_.receive_cq.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {16, 16, 1, 1, 0};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = a_.pd.get();
    init.send_ops_flags =
        IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE | abi::kQpExWithFlush;
    a_.qp.reset(ibv_create_qp_ex(context_.get(), &init));
    ASSERT_NE(a_.qp, nullptr);
    ibv_qp_init_attr plain = rc_attributes(b_.cq.get(), b_.receive_cq.get());
    b_.qp.reset(ibv_create_qp(b_.pd.get(), &plain));
    ASSERT_EQ(to_init(a_.qp.get()), 0);
    ASSERT_EQ(to_init(b_.qp.get(), IBV_ACCESS_REMOTE_WRITE | flush_access), 0);
    ASSERT_EQ(to_rtr(a_.qp.get(), b_.qp->qp_num), 0);
    ASSERT_EQ(to_rtr(b_.qp.get(), a_.qp->qp_num), 0);
    ASSERT_EQ(to_rts(a_.qp.get()), 0);
    ASSERT_EQ(to_rts(b_.qp.get()), 0);
    x_ = ibv_qp_to_qp_ex(a_.qp.get());
    ASSERT_NE(x_, nullptr);
    x_->wr_flags = IBV_SEND_SIGNALED;
  }
  // Does the same as the inline function of newer headers.
  void wr_flush(uint32_t rkey, uint64_t address, size_t length, uint8_t placement,
                uint8_t selectivity = abi::kSelectRange) {
    static_cast<abi::NewerQpEx*>(x_)->wr_flush(x_, rkey, address, length, placement, selectivity);
  }
  ibv_wc_status flush(uint32_t rkey, uint64_t address, size_t length, uint8_t placement,
                      uint8_t selectivity = abi::kSelectRange) {
    ibv_wr_start(x_);
    wr_flush(rkey, address, length, placement, selectivity);
    EXPECT_EQ(ibv_wr_complete(x_), 0);
    const ibv_wc wc = wait_for_completion(a_.cq.get());
    if (wc.status == IBV_WC_SUCCESS) {
      EXPECT_EQ(static_cast<unsigned>(wc.opcode), abi::kWcFlush);
    }
    return wc.status;
  }
  int post_flush(size_t length, uint8_t placement, uint8_t selectivity) {
    ibv_wr_start(x_);
    wr_flush(b_.mr->rkey, b_.address(), length, placement, selectivity);
    return ibv_wr_complete(x_);
  }
  MrPtr register_for(int access, void* at = nullptr, size_t bytes = 4096) {
    return MrPtr(ibv_reg_mr(b_.pd.get(), at != nullptr ? at : b_.memory.data(), bytes,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | access));
  }
  static uint64_t number(const void* at) { return reinterpret_cast<uint64_t>(at); }

  ibv_qp_ex* x_ = nullptr;
  const size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
};

// ---------------------------------------------------------------- ATOMIC WRITE

TEST_F(Placement, AtomicWriteWritesEightBytes) {
  std::fill_n(b_.memory.begin(), 64, uint8_t{0xEE});
  uint64_t word = 0x1122334455667788;
  ibv_wr_start(x_);
  x_->wr_id = 9;
  ibv_wr_atomic_write(x_, b_.mr->rkey, b_.address(16), &word);
  const uint64_t sent = std::exchange(word, 0);  // it was copied
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  const ibv_wc wc = wait_for_completion(a_.cq.get());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(wc.opcode, IBV_WC_ATOMIC_WRITE);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 16, &sent, 8), 0);
  EXPECT_EQ(b_.memory[15], 0xEE);
  EXPECT_EQ(b_.memory[24], 0xEE);
}

TEST_F(Placement, AtomicWritesKeepTheirOrder) {
  for (uint64_t round = 0; round < 8; ++round) {
    ibv_wr_start(x_);
    for (uint64_t i = 0; i < 16; ++i) {
      const uint64_t word = round * 16 + i;
      ibv_wr_atomic_write(x_, b_.mr->rkey, b_.address(), &word);
    }
    ASSERT_EQ(ibv_wr_complete(x_), 0);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
    }
  }
  uint64_t last = 0;
  std::memcpy(&last, b_.memory.data(), 8);
  EXPECT_EQ(last, 127u);
}

TEST_F(Placement, RejectsInvalidAtomicWrites) {
  const uint64_t word = 1;
  ibv_wr_start(x_);
  ibv_wr_atomic_write(x_, b_.mr->rkey, b_.address(4), &word);
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  ibv_wr_start(x_);
  ibv_wr_atomic_write(x_, b_.mr->rkey, b_.address(), &word);
  ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(), 16);
  EXPECT_EQ(ibv_wr_complete(x_), EINVAL);
  EXPECT_EQ(completions_within_ms(a_.cq.get(), 20), 0);
  ibv_wr_start(x_);
  ibv_wr_atomic_write(x_, b_.mr->rkey ^ 1, b_.address(), &word);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(b_.memory[0], 0);
}

TEST_F(Placement, PostSendPostsAtomicWrites) {
  const uint64_t words[2] = {0x0102030405060708, 0x1112131415161718};
  std::memcpy(a_.memory.data(), words, sizeof words);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_ATOMIC_WRITE, &sge, b_, 8);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).opcode, IBV_WC_ATOMIC_WRITE);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 8, words, 8), 0);
  EXPECT_EQ(b_.memory[16], 0);
  uint64_t word = words[1];
  sge = {number(&word), 8, 0};  // inline data needs no registration
  wr.send_flags |= IBV_SEND_INLINE;
  ASSERT_EQ(a_.send(wr), 0);
  word = 0;
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 8, words + 1, 8), 0);
  sge.length = 16;
  EXPECT_NE(a_.send(wr), 0);
}

// ---------------------------------------------------------------- FLUSH

TEST_F(Placement, FlushesAnonymousMemory) {
  const MrPtr mr = register_for(kFlushAccess);
  ASSERT_NE(mr, nullptr);
  std::fill_n(a_.memory.begin(), 64, uint8_t{0x44});
  ibv_wr_start(x_);
  x_->wr_flags = 0;
  ibv_wr_rdma_write(x_, mr->rkey, b_.address(100));
  ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(), 64);
  x_->wr_flags = IBV_SEND_SIGNALED;
  wr_flush(mr->rkey, b_.address(100), 64, kGlobal);
  ASSERT_EQ(ibv_wr_complete(x_), 0);
  const ibv_wc wc = wait_for_completion(a_.cq.get());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(static_cast<unsigned>(wc.opcode), abi::kWcFlush);
  EXPECT_EQ(b_.memory[163], 0x44);
  EXPECT_EQ(flush(mr->rkey, b_.address(100), 64, kPersistent), IBV_WC_SUCCESS);
  EXPECT_EQ(flush(mr->rkey, b_.address(100), 64, kGlobal | kPersistent), IBV_WC_SUCCESS);
  EXPECT_EQ(flush(mr->rkey, b_.address(), 0, kGlobal), IBV_WC_SUCCESS);
  // With region selectivity the range is ignored.
  EXPECT_EQ(flush(mr->rkey, 1, 1, kPersistent, abi::kSelectRegion), IBV_WC_SUCCESS);
}

TEST_F(Placement, FlushesAFile) {
  char name[] = "/tmp/verbena-flush-XXXXXX";
  const int fd = mkstemp(name);
  ASSERT_GE(fd, 0);
  unlink(name);
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(3 * page_)), 0);
  void* at = mmap(nullptr, 3 * page_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(at, MAP_FAILED);
  {
    const MrPtr mr = register_for(kFlushAccess, at, 3 * page_);
    ASSERT_NE(mr, nullptr);
    std::fill_n(a_.memory.begin(), 64, uint8_t{0x55});
    const uint64_t to = number(at) + page_ - 32;  // neither end is page-aligned
    ibv_wr_start(x_);
    x_->wr_flags = 0;
    ibv_wr_rdma_write(x_, mr->rkey, to);
    ibv_wr_set_sge(x_, a_.mr->lkey, a_.address(), 64);
    x_->wr_flags = IBV_SEND_SIGNALED;
    wr_flush(mr->rkey, to, 64, kPersistent);
    ASSERT_EQ(ibv_wr_complete(x_), 0);
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
    uint8_t seen[66] = {};
    ASSERT_EQ(pread(fd, seen, sizeof seen, static_cast<off_t>(page_ - 33)), 66);
    EXPECT_EQ(seen[0], 0);
    for (size_t i = 1; i <= 64; ++i) EXPECT_EQ(seen[i], 0x55);
    EXPECT_EQ(seen[65], 0);
  }
  munmap(at, 3 * page_);
  close(fd);
}

// Persistent placement asks the kernel to write back, and the requester gets an error if that
// fails. Global visibility needs no system call.
TEST_F(Placement, ReportsAFailedFlush) {
  void* at = mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  {
    const MrPtr mr = register_for(kFlushAccess | IBV_ACCESS_ON_DEMAND, at, 2 * page_);
    ASSERT_NE(mr, nullptr);
    munmap(static_cast<std::byte*>(at) + page_, page_);
    EXPECT_EQ(flush(mr->rkey, number(at), page_, kPersistent), IBV_WC_SUCCESS);
    EXPECT_EQ(flush(mr->rkey, number(at), 2 * page_, kGlobal), IBV_WC_SUCCESS);
    EXPECT_EQ(flush(mr->rkey, number(at), 2 * page_, kPersistent), IBV_WC_REM_OP_ERR);
    connect_flushing(kFlushAccess);
    EXPECT_EQ(flush(mr->rkey, 0, 0, kPersistent, abi::kSelectRegion), IBV_WC_REM_OP_ERR);
  }
  munmap(at, page_);
}

TEST_F(Placement, FlushNeedsTheAccessOfTheRegion) {
  const MrPtr none = register_for(0);
  const MrPtr global = register_for(static_cast<int>(abi::kAccessFlushGlobal));
  ASSERT_NE(none, nullptr);
  ASSERT_NE(global, nullptr);
  EXPECT_EQ(flush(global->rkey, b_.address(), 64, kGlobal), IBV_WC_SUCCESS);
  struct Case {
    uint32_t rkey;
    size_t offset;
    uint8_t placement;
  };
  for (const Case& c :
       {Case{none->rkey, 0, kGlobal}, Case{none->rkey, 0, kPersistent},
        Case{global->rkey, 0, kPersistent}, Case{global->rkey, 0, kGlobal | kPersistent},
        Case{global->rkey, 4096 - 63, kGlobal}, Case{global->rkey ^ 1, 0, kGlobal}}) {
    connect_flushing(kFlushAccess);
    EXPECT_EQ(flush(c.rkey, b_.address(c.offset), 64, c.placement), IBV_WC_REM_ACCESS_ERR);
  }
}

TEST_F(Placement, FlushNeedsTheAccessOfTheQueuePair) {
  const MrPtr mr = register_for(kFlushAccess);
  connect_flushing(0);
  EXPECT_EQ(flush(mr->rkey, b_.address(), 64, kGlobal), IBV_WC_REM_ACCESS_ERR);
  connect_flushing(static_cast<int>(abi::kAccessFlushGlobal));
  EXPECT_EQ(flush(mr->rkey, b_.address(), 64, kGlobal), IBV_WC_SUCCESS);
  EXPECT_EQ(flush(mr->rkey, b_.address(), 64, kPersistent), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Placement, RejectsInvalidFlushes) {
  EXPECT_EQ(post_flush(64, 0, abi::kSelectRange), EINVAL);
  EXPECT_EQ(post_flush(64, 4, abi::kSelectRange), EINVAL);
  EXPECT_EQ(post_flush(64, kGlobal, 2), EINVAL);
  EXPECT_EQ(post_flush(size_t{UINT32_MAX} + 1, kGlobal, abi::kSelectRange), EINVAL);
  EXPECT_EQ(completions_within_ms(a_.cq.get(), 20), 0);
}

}  // namespace
}  // namespace verbena::test
