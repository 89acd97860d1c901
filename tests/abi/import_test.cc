// Importing devices, protection domains and memory regions.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

class Import : public LoopbackTest {
 protected:
  ContextPtr import_device() { return ContextPtr(ibv_import_device(dup(context_->cmd_fd))); }
};

TEST_F(Import, AMemoryRegionByItsHandle) {
  const auto before = open_descriptors();
  {
    ContextPtr second = import_device();
    ASSERT_NE(second, nullptr);
    ibv_pd* pd = ibv_import_pd(second.get(), b_.pd->handle);
    ASSERT_NE(pd, nullptr);
    EXPECT_EQ(pd->context, second.get());
    ibv_mr* mr = ibv_import_mr(pd, b_.mr->handle);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(mr->lkey, b_.mr->lkey);
    EXPECT_EQ(mr->rkey, b_.mr->rkey);
    EXPECT_EQ(mr->length, b_.mr->length);
    EXPECT_EQ(mr->addr, nullptr);

    EXPECT_EQ(ibv_dealloc_pd(b_.pd.get()), EBUSY);
    ibv_sge sge = a_.sge(0, 8);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    wr.wr.rdma.rkey = mr->rkey;
    ASSERT_EQ(a_.send(wr), 0);
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);

    ibv_unimport_mr(mr);
    ibv_unimport_pd(pd);
  }
  EXPECT_EQ(open_descriptors(), before);  // the command descriptor's copy went with the context
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(Import, AnImportedDomainRegistersMemory) {
  ContextPtr second = import_device();
  ibv_pd* pd = ibv_import_pd(second.get(), a_.pd->handle);
  ASSERT_NE(pd, nullptr);
  ibv_mr* mr = ibv_reg_mr(pd, a_.memory.data(), 64, 0);
  ASSERT_NE(mr, nullptr);
  ibv_sge sge{a_.address(), 8, mr->lkey};  // the queue pair is of the original domain
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  ibv_unimport_pd(pd);
}

TEST_F(Import, WhatDoesNotExist) {
  EXPECT_EQ(ibv_import_device(-1), nullptr);
  EXPECT_EQ(errno, EBADF);
  const int other = eventfd(0, 0);
  EXPECT_EQ(ibv_import_device(other), nullptr);
  EXPECT_EQ(errno, EINVAL);
  close(other);
  ContextPtr second = import_device();
  EXPECT_EQ(ibv_import_pd(second.get(), 0xFFFFFF), nullptr);
  EXPECT_EQ(errno, EINVAL);
  // A context that was opened by itself has objects of its own.
  ContextPtr stranger = open_loopback();
  EXPECT_EQ(ibv_import_pd(stranger.get(), a_.pd->handle), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_pd* pd = ibv_import_pd(second.get(), a_.pd->handle);
  ASSERT_NE(pd, nullptr);
  EXPECT_EQ(ibv_import_mr(pd, b_.mr->handle), nullptr);  // of another domain
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_import_mr(pd, 0x12345678), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_unimport_pd(pd);
}

TEST_F(Import, ObjectsStayInTheirProcess) {
  const int copy = dup(context_->cmd_fd);
  EXPECT_EQ(in_child([&] {
              if (ibv_import_device(copy) != nullptr) return 1;
              return errno == EOPNOTSUPP ? 0 : 2;
            }),
            0);
  close(copy);
}

}  // namespace
}  // namespace verbena::test
