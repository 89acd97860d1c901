// Importing devices, protection domains, memory regions and device memory.
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

TEST_F(Import, ImportsAMemoryRegionByItsHandle) {
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
  EXPECT_EQ(open_descriptors(),
            before);  // closing the context closed the copy of the command descriptor
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
  ibv_sge sge{a_.address(), 8, mr->lkey};  // the queue pair belongs to the original domain
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  ibv_unimport_pd(pd);
}

TEST_F(Import, ImportsDeviceMemoryByItsHandle) {
  ibv_alloc_dm_attr attr{.length = 4096, .log_align_req = 0, .comp_mask = 0};
  ibv_dm* dm = ibv_alloc_dm(context_.get(), &attr);
  ASSERT_NE(dm, nullptr);
  const auto before = open_descriptors();
  {
    ContextPtr second = import_device();
    ibv_pd* pd = ibv_import_pd(second.get(), b_.pd->handle);
    ASSERT_NE(pd, nullptr);
    ibv_dm* same = ibv_import_dm(second.get(), dm->handle);
    ASSERT_NE(same, nullptr);
    EXPECT_EQ(same->context, second.get());
    EXPECT_EQ(ibv_free_dm(dm), EBUSY);

    const uint64_t word = 0x0123456789ABCDEF;
    uint64_t seen = 0;
    ASSERT_EQ(ibv_memcpy_to_dm(same, 8, &word, 8), 0);
    ASSERT_EQ(ibv_memcpy_from_dm(&seen, dm, 8, 8), 0);
    EXPECT_EQ(seen, word);
    EXPECT_EQ(ibv_memcpy_to_dm(same, 4092, &word, 8), EFAULT);

    ibv_mr* mr = ibv_reg_dm_mr(pd, same, 0, 4096, IBV_ACCESS_ZERO_BASED | kAllAccess);
    ASSERT_NE(mr, nullptr);
    ibv_sge sge = a_.sge(0, 8);
    std::memset(a_.memory.data(), 0x77, 8);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    wr.wr.rdma.remote_addr = 64;
    wr.wr.rdma.rkey = mr->rkey;
    ASSERT_EQ(a_.send(wr), 0);
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(ibv_memcpy_from_dm(&seen, dm, 64, 8), 0);
    EXPECT_EQ(seen, 0x7777777777777777u);

    ibv_unimport_dm(same);  // the region keeps the memory
    EXPECT_EQ(ibv_free_dm(dm), EBUSY);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    ibv_unimport_pd(pd);
    EXPECT_EQ(ibv_import_dm(second.get(), 0xFFFFFF), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(open_descriptors(), before);
  const ContextPtr other_context = open_loopback();
  EXPECT_EQ(ibv_import_dm(other_context.get(), dm->handle), nullptr);
  EXPECT_EQ(errno, EINVAL);
  const uint32_t handle = dm->handle;
  EXPECT_EQ(ibv_free_dm(dm), 0);
  EXPECT_EQ(ibv_import_dm(context_.get(), handle), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// The queue pair keeps the regions that were registered through the import. The original domain can
// be deallocated.
TEST_F(Import, UnimportReleasesThePdAlthoughAQueuePairRemains) {
  PdPtr original(ibv_alloc_pd(context_.get()));
  ContextPtr second = import_device();
  ibv_pd* pd = ibv_import_pd(second.get(), original->handle);
  ASSERT_NE(pd, nullptr);
  CqPtr cq(ibv_create_cq(second.get(), 16, nullptr, nullptr, 0));
  ibv_qp_init_attr init = rc_attributes(cq.get(), cq.get());
  QpPtr qp(ibv_create_qp(pd, &init));
  ASSERT_NE(qp, nullptr);
  MrPtr mr(ibv_reg_mr(pd, a_.memory.data(), 64, IBV_ACCESS_LOCAL_WRITE));
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(original.get()), EBUSY);

  ibv_unimport_pd(pd);
  EXPECT_EQ(ibv_dealloc_pd(original.release()), 0);

  b_.qp.reset();
  init = rc_attributes(b_.cq.get(), b_.receive_cq.get());
  b_.qp.reset(ibv_create_qp(b_.pd.get(), &init));
  ASSERT_EQ(to_init(qp.get()), 0);
  ASSERT_EQ(to_init(b_.qp.get()), 0);
  ASSERT_EQ(to_rtr(qp.get(), b_.qp->qp_num), 0);
  ASSERT_EQ(to_rtr(b_.qp.get(), qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp.get()), 0);
  ibv_sge sge{a_.address(), 8, mr->lkey};
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(qp.get(), &wr, &bad), 0);
  EXPECT_EQ(wait_for_completion(cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(Import, RejectsUnknownHandles) {
  EXPECT_EQ(ibv_import_device(-1), nullptr);
  EXPECT_EQ(errno, EBADF);
  const int other = eventfd(0, 0);
  EXPECT_EQ(ibv_import_device(other), nullptr);
  EXPECT_EQ(errno, EINVAL);
  close(other);
  ContextPtr second = import_device();
  EXPECT_EQ(ibv_import_pd(second.get(), 0xFFFFFF), nullptr);
  EXPECT_EQ(errno, EINVAL);
  // A context that was opened separately has its own objects.
  ContextPtr other_context = open_loopback();
  EXPECT_EQ(ibv_import_pd(other_context.get(), a_.pd->handle), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_pd* pd = ibv_import_pd(second.get(), a_.pd->handle);
  ASSERT_NE(pd, nullptr);
  EXPECT_EQ(ibv_import_mr(pd, b_.mr->handle), nullptr);  // it belongs to another domain
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_import_mr(pd, 0x12345678), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_unimport_pd(pd);
}

// The import does not know the memory of the region.
TEST_F(Import, RejectsReregistrationOfImportedRegions) {
  MrPtr mr(ibv_reg_mr(a_.pd.get(), a_.memory.data(), 8192, IBV_ACCESS_LOCAL_WRITE));
  ibv_mr* imported = ibv_import_mr(a_.pd.get(), mr->handle);
  ASSERT_NE(imported, nullptr);
  const auto change = [&](ibv_mr* what) {
    errno = 0;
    return ibv_rereg_mr(what, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, a_.memory.data(), 4096, 0);
  };
  EXPECT_EQ(change(imported), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(change(mr.get()), 0);
  mr.reset();
  EXPECT_EQ(change(imported), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  ibv_unimport_mr(imported);
}

TEST_F(Import, RejectsImportInAnotherProcess) {
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
