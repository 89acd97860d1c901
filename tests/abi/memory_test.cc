// Registering memory: which calls are rejected with which errno, and the meaning of the iova
// variants.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

class Memory : public LoopbackTest {
 protected:
  void expect_errno(int code, void* address, size_t length, int access) {
    errno = 0;
    ibv_mr* mr = ibv_reg_mr(a_.pd.get(), address, length, access);
    EXPECT_EQ(mr, nullptr);
    EXPECT_EQ(errno, code) << strerror(errno);
    if (mr != nullptr) ibv_dereg_mr(mr);
  }
  size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
};

TEST_F(Memory, RejectsUnmappedMemoryWithEfault) {
  Mapping map(4 * page_);
  munmap(map.data() + 2 * page_, page_);
  expect_errno(EFAULT, map.data() + 2 * page_, 1, 0);
  expect_errno(EFAULT, map.data(), 4 * page_, kAllAccess);
  expect_errno(EFAULT, map.data() + page_, page_ + 1, 0);
  expect_errno(EFAULT, nullptr, 16, kAllAccess);
  MrPtr fits(ibv_reg_mr(a_.pd.get(), map.data() + 3, 2 * page_ - 3, kAllAccess));
  EXPECT_NE(fits, nullptr);
}

TEST_F(Memory, RejectsWriteAccessToReadOnlyMemory) {
  Mapping map(2 * page_, PROT_READ);
  expect_errno(EFAULT, map.data(), page_, IBV_ACCESS_LOCAL_WRITE);
  for (const int access : {0, int{IBV_ACCESS_REMOTE_READ}, int{IBV_ACCESS_ON_DEMAND}}) {
    MrPtr mr(ibv_reg_mr(a_.pd.get(), map.data(), 2 * page_, access));
    EXPECT_NE(mr, nullptr) << access;
  }
  Mapping closed(page_, PROT_NONE);
  expect_errno(EFAULT, closed.data(), page_, 0);
}

TEST_F(Memory, RejectsInvalidAccessFlags) {
  uint8_t* p = a_.memory.data();
  expect_errno(EINVAL, p, 64, IBV_ACCESS_REMOTE_WRITE);  // also needs local write
  expect_errno(EINVAL, p, 64, IBV_ACCESS_REMOTE_ATOMIC);
  expect_errno(EINVAL, p, 64, 1 << 10);  // no such flag
  expect_errno(EINVAL, p, 64, 1 << 19);
  MrPtr relaxed(ibv_reg_mr(a_.pd.get(), p, 64, kAllAccess | IBV_ACCESS_RELAXED_ORDERING));
  EXPECT_NE(relaxed, nullptr);
  // Every flag of the optional range is a hint.
  MrPtr hinted(ibv_reg_mr_iova2(a_.pd.get(), p, 64, 0,
                                IBV_ACCESS_LOCAL_WRITE | unsigned{IBV_ACCESS_OPTIONAL_RANGE}));
  EXPECT_NE(hinted, nullptr);
}

TEST_F(Memory, RejectsRangesThatWrap) {
  expect_errno(EINVAL, a_.memory.data(), SIZE_MAX, kAllAccess);
  expect_errno(EINVAL, reinterpret_cast<void*>(UINTPTR_MAX - 10), 11 + 1, 0);
  expect_errno(EFAULT, reinterpret_cast<void*>(UINTPTR_MAX - 10), 5, 0);
  expect_errno(EINVAL, nullptr, SIZE_MAX, kAllAccess);  // only on demand
  errno = 0;
  EXPECT_EQ(ibv_reg_mr_iova(a_.pd.get(), a_.memory.data(), 64, UINT64_MAX - 8, kAllAccess),
            nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Memory, FillsThePublicFields) {
  ibv_mr* mr = b_.mr.get();
  EXPECT_EQ(mr->context, context_.get());
  EXPECT_EQ(mr->pd, b_.pd.get());
  EXPECT_EQ(mr->addr, b_.memory.data());
  EXPECT_EQ(mr->length, b_.memory.size());
  EXPECT_EQ(mr->lkey, mr->rkey);
}

TEST_F(Memory, AcceptsZeroLengthAndGrantsNoAccess) {
  MrPtr mr(ibv_reg_mr(b_.pd.get(), b_.memory.data(), 0, kAllAccess));
  ASSERT_NE(mr, nullptr);
  MrPtr empty(ibv_reg_mr(b_.pd.get(), nullptr, 0, kAllAccess));
  EXPECT_NE(empty, nullptr);
  ibv_sge sge = a_.sge(0, 1);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  wr.wr.rdma.rkey = mr->rkey;
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Memory, OverlappingRegionsAreIndependent) {
  MrPtr large(ibv_reg_mr(b_.pd.get(), b_.memory.data(), 4096, kAllAccess));
  ibv_mr* small = ibv_reg_mr(b_.pd.get(), b_.memory.data() + 100, 200, kAllAccess);
  ASSERT_NE(small, nullptr);
  EXPECT_NE(large->rkey, small->rkey);
  EXPECT_EQ(ibv_dereg_mr(small), 0);
  ibv_sge sge = a_.sge(0, 64);
  a_.memory[0] = 99;
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 150);
  wr.wr.rdma.rkey = large->rkey;
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(b_.memory[150], 99);
}

TEST_F(Memory, PeersUseTheIova) {
  const uint64_t iova = 0x7000'0000'1234;
  MrPtr mr(ibv_reg_mr_iova(b_.pd.get(), b_.memory.data() + 1000, 500, iova, kAllAccess));
  ASSERT_NE(mr, nullptr);
  a_.memory[0] = 0x5A;
  ibv_sge sge = a_.sge(0, 1);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  wr.wr.rdma.rkey = mr->rkey;
  wr.wr.rdma.remote_addr = iova + 499;
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(b_.memory[1499], 0x5A);
  wr.wr.rdma.remote_addr = iova + 500;
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Memory, ZeroBasedRegionsStartAtAddressZero) {
  MrPtr mr(ibv_reg_mr(b_.pd.get(), b_.memory.data() + 64, 100, kAllAccess | IBV_ACCESS_ZERO_BASED));
  ASSERT_NE(mr, nullptr);
  a_.memory[0] = 0x6B;
  ibv_sge sge = a_.sge(0, 1);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  wr.wr.rdma.rkey = mr->rkey;
  wr.wr.rdma.remote_addr = 10;
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(b_.memory[74], 0x6B);
}

TEST_F(Memory, AcceptsValidAdviceOnly) {
  ibv_sge sge = a_.sge(0, 4096);
  const auto advise = [&](ibv_advise_mr_advice advice, uint32_t flags = 0, uint32_t count = 1) {
    return ibv_advise_mr(a_.pd.get(), advice, flags, &sge, count);
  };
  for (const auto advice : {IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT}) {
    EXPECT_EQ(advise(advice), 0);
    EXPECT_EQ(advise(advice, IBV_ADVISE_MR_FLAG_FLUSH), 0);
  }
  EXPECT_EQ(advise(no_such<ibv_advise_mr_advice>(99)), EOPNOTSUPP);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 2), EINVAL);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, 0), EINVAL);
  EXPECT_EQ(ibv_advise_mr(b_.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EPERM);
  sge.length = static_cast<uint32_t>(a_.memory.size()) + 1;
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH), EFAULT);
  sge.length = 4096;
  sge.lkey ^= 1;
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH), EFAULT);
  MrPtr read_only(ibv_reg_mr(a_.pd.get(), a_.memory.data(), 4096, 0));
  sge.lkey = read_only->lkey;
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH), 0);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE), EPERM);
  MwPtr window(ibv_alloc_mw(a_.pd.get(), IBV_MW_TYPE_2));
  sge.lkey = window->rkey;
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH), EINVAL);
}

}  // namespace
}  // namespace verbena::test
