// Memory windows: when a region is busy, which queue pairs may use a window, and how it is unbound.
#include <cerrno>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

class Windows : public LoopbackTest {
 protected:
  ibv_wc_status bind_type1(ibv_mw* mw, uint64_t length, unsigned access = IBV_ACCESS_REMOTE_WRITE) {
    ibv_mw_bind bind{};
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info = {b_.mr.get(), b_.address(), length, access};
    if (length == 0) bind.bind_info = {};
    EXPECT_EQ(ibv_bind_mw(b_.qp.get(), mw, &bind), 0);
    return wait_for_completion(b_.cq.get()).status;
  }
  ibv_wc_status bind_type2(ibv_mw* mw, uint32_t key, const Side& side, unsigned access) {
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = key;
    wr.bind_mw.bind_info = {side.mr.get(), side.address(), 4096, access};
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(side.qp.get(), &wr, &bad), 0);
    return wait_for_completion(side.cq.get()).status;
  }
  ibv_wc_status write(uint32_t rkey) {
    ibv_sge sge = a_.sge(0, 8);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    wr.wr.rdma.rkey = rkey;
    EXPECT_EQ(a_.send(wr), 0);
    return wait_for_completion(a_.cq.get()).status;
  }
};

TEST_F(Windows, BoundWindowKeepsTheRegionBusy) {
  ibv_mw* mw = ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_1);
  ASSERT_NE(mw, nullptr);
  ASSERT_EQ(bind_type1(mw, 4096), IBV_WC_SUCCESS);
  EXPECT_EQ(write(mw->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(b_.mr.get()), EBUSY);
  errno = 0;
  EXPECT_EQ(ibv_rereg_mr(b_.mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EBUSY);
  const uint32_t key = mw->rkey;
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);  // releases the region
  EXPECT_EQ(write(key), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(b_.mr.release()), 0);
}

TEST_F(Windows, BindOfLengthZeroUnbindsAType1Window) {
  MwPtr mw(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_1));
  ASSERT_EQ(bind_type1(mw.get(), 4096), IBV_WC_SUCCESS);
  const uint32_t first = mw->rkey;
  ASSERT_EQ(bind_type1(mw.get(), 64), IBV_WC_SUCCESS);  // bound again with another length
  EXPECT_NE(mw->rkey, first);
  EXPECT_EQ(write(mw->rkey), IBV_WC_SUCCESS);
  ASSERT_EQ(bind_type1(mw.get(), 0), IBV_WC_SUCCESS);
  EXPECT_EQ(write(mw->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(b_.mr.release()), 0);
}

TEST_F(Windows, Type2WindowBelongsToItsQueuePair) {
  MwPtr mw(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_2));
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(bind_type2(mw.get(), key, b_, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
  EXPECT_EQ(write(key), IBV_WC_SUCCESS);
  reconnect();  // new queue pairs; destroying the old one unbound its windows
  EXPECT_EQ(write(key), IBV_WC_REM_ACCESS_ERR);
  reconnect();
  const uint32_t next = ibv_inc_rkey(key);
  ASSERT_EQ(bind_type2(mw.get(), next, b_, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
  EXPECT_EQ(write(next), IBV_WC_SUCCESS);
  // A bound window must be invalidated before it is bound again.
  EXPECT_EQ(bind_type2(mw.get(), ibv_inc_rkey(next), b_, IBV_ACCESS_REMOTE_WRITE),
            IBV_WC_MW_BIND_ERR);
}

TEST_F(Windows, RejectsInvalidBindings) {
  MwPtr mw(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_2));
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  // A queue pair and a region of another domain.
  EXPECT_EQ(bind_type2(mw.get(), key, a_, IBV_ACCESS_REMOTE_WRITE), IBV_WC_MW_BIND_ERR);
  reconnect();
  EXPECT_EQ(bind_type2(mw.get(), key, b_, IBV_ACCESS_MW_BIND), IBV_WC_MW_BIND_ERR);
  reconnect();
  ASSERT_EQ(ibv_rereg_mr(b_.mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                         IBV_ACCESS_MW_BIND),
            0);
  EXPECT_EQ(bind_type2(mw.get(), key, b_, IBV_ACCESS_REMOTE_WRITE), IBV_WC_MW_BIND_ERR);
  reconnect();
  EXPECT_EQ(bind_type2(mw.get(), key, b_, IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
}

TEST_F(Windows, LocalWriteIsAcceptedAndGrantsNoRemoteAccess) {
  MwPtr type1(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_1));
  ASSERT_EQ(bind_type1(type1.get(), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
            IBV_WC_SUCCESS);
  EXPECT_EQ(write(type1->rkey), IBV_WC_SUCCESS);
  MwPtr type2(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_2));
  const uint32_t key = ibv_inc_rkey(type2->rkey);
  ASSERT_EQ(bind_type2(type2.get(), key, b_, IBV_ACCESS_LOCAL_WRITE), IBV_WC_SUCCESS);
  EXPECT_EQ(write(key), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Windows, RejectsAZeroBasedType1Window) {
  MwPtr mw(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_1));
  ibv_mw_bind bind{};
  bind.bind_info = {b_.mr.get(), b_.address(), 64, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED};
  const uint32_t before = mw->rkey;
  EXPECT_EQ(ibv_bind_mw(b_.qp.get(), mw.get(), &bind), EINVAL);
  EXPECT_EQ(mw->rkey, before);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw = {mw.get(), ibv_inc_rkey(mw->rkey), bind.bind_info};
  EXPECT_EQ(b_.send(wr), EINVAL);
  MwPtr type2(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_2));
  EXPECT_EQ(bind_type2(type2.get(), ibv_inc_rkey(type2->rkey), b_,
                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED),
            IBV_WC_SUCCESS);
}

TEST_F(Windows, SendWithInvalidateUnbindsTheWindow) {
  MwPtr mw(ibv_alloc_mw(b_.pd.get(), IBV_MW_TYPE_2));
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(bind_type2(mw.get(), key, b_, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
  ASSERT_EQ(b_.receive(1, 0, 64), 0);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_SEND_WITH_INV, &sge, b_, 0);
  wr.invalidate_rkey = key;
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  const ibv_wc got = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(got.wc_flags & IBV_WC_WITH_INV, unsigned{IBV_WC_WITH_INV});
  EXPECT_EQ(got.invalidated_rkey, key);
  EXPECT_EQ(write(key), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(b_.mr.release()), 0);
}

}  // namespace
}  // namespace verbena::test
