// Accesses that a peer may not perform: the requester gets a remote access error, both queue pairs
// enter the error state, and no byte changes.
#include <algorithm>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

class Access : public LoopbackTest {
 protected:
  ibv_qp_state state_of(ibv_qp* qp) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
  }

  // Sends `wr`, expects the peer to reject it, and reconnects both sides.
  void expect_rejected(ibv_send_wr& wr) {
    std::ranges::fill(a_.memory, 0xAA);
    std::ranges::fill(b_.memory, 0x55);
    ASSERT_EQ(a_.send(wr), 0);
    const ibv_wc wc = wait_for_completion(a_.cq.get());
    EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.wr_id, 77u);
    EXPECT_EQ(wc.qp_num, a_.qp->qp_num);
    EXPECT_EQ(state_of(a_.qp.get()), IBV_QPS_ERR);
    EXPECT_EQ(state_of(b_.qp.get()), IBV_QPS_ERR);
    EXPECT_TRUE(std::ranges::all_of(b_.memory, [](uint8_t byte) { return byte == 0x55; }));
    EXPECT_TRUE(std::ranges::all_of(a_.memory, [](uint8_t byte) { return byte == 0xAA; }));
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(context_.get(), &event), 0);  // the responder's
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR) << ibv_event_type_str(event.event_type);
    EXPECT_EQ(event.element.qp, b_.qp.get());
    ibv_ack_async_event(&event);
    reconnect();
  }
};

TEST_F(Access, RejectsAWrongKey) {
  ibv_sge sge = a_.sge(0, 64);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    ibv_send_wr wr = rdma(opcode, &sge, b_, 0);
    for (const uint32_t key : {0u, ~0u, b_.mr->rkey ^ 1, b_.mr->rkey ^ 0x100, a_.mr->rkey}) {
      SCOPED_TRACE(key);
      wr.wr.rdma.rkey = key;
      ASSERT_NO_FATAL_FAILURE(expect_rejected(wr));
    }
  }
}

TEST_F(Access, RejectsTheKeyOfADeregisteredRegion) {
  std::vector<uint8_t> other(4096);
  ibv_mr* mr = ibv_reg_mr(b_.pd.get(), other.data(), other.size(), kAllAccess);
  ASSERT_NE(mr, nullptr);
  ibv_sge sge = a_.sge(0, 64);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(other.data());
  wr.wr.rdma.rkey = mr->rkey;
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  ASSERT_EQ(ibv_dereg_mr(mr), 0);
  expect_rejected(wr);
}

TEST_F(Access, RejectsAccessBeyondTheRegion) {
  const uint64_t begin = b_.address(), end = begin + b_.memory.size();
  const struct {
    uint64_t address;
    uint32_t length;
  } ranges[] = {{end, 1},        {end - 1, 2},         {begin - 1, 2}, {begin - 64, 64},
                {UINT64_MAX, 1}, {UINT64_MAX - 7, 64}, {0, 8},         {begin + (1ull << 63), 8}};
  for (const auto& range : ranges) {
    SCOPED_TRACE(range.address);
    ibv_sge sge = a_.sge(0, range.length);
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
      ibv_send_wr wr = rdma(opcode, &sge, b_, 0);
      wr.wr.rdma.remote_addr = range.address;
      ASSERT_NO_FATAL_FAILURE(expect_rejected(wr));
    }
  }
}

// The operations that each region access allows, on a queue pair that allows all.
TEST_F(Access, RegionAccessFlagsAllowOnlyTheirOperations) {
  const struct {
    int access;
    bool write, read, atomic;
  } rows[] = {
      {0, false, false, false},
      {IBV_ACCESS_LOCAL_WRITE, false, false, false},
      {IBV_ACCESS_REMOTE_READ, false, true, false},
      {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, true, false, false},
      {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, false, false, true},
      {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, false, true, false},
      {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, true, true,
       false},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.access);
    b_.mr.reset(ibv_reg_mr(b_.pd.get(), b_.memory.data(), b_.memory.size(), row.access));
    ASSERT_NE(b_.mr, nullptr);
    ibv_sge sge = a_.sge(0, 8);
    for (const auto& [opcode, allowed] :
         {std::pair{IBV_WR_RDMA_WRITE, row.write}, std::pair{IBV_WR_RDMA_READ, row.read},
          std::pair{IBV_WR_ATOMIC_FETCH_AND_ADD, row.atomic}}) {
      SCOPED_TRACE(opcode);
      ibv_send_wr wr = rdma(opcode, &sge, b_, 0);
      if (allowed) {
        ASSERT_EQ(a_.send(wr), 0);
        EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
      } else {
        ASSERT_NO_FATAL_FAILURE(expect_rejected(wr));
      }
    }
  }
}

// A bad local key is an error of the requester.
TEST_F(Access, ABadLocalKeyFailsTheRequest) {
  ibv_sge sge = a_.sge(0, 64);
  sge.lkey ^= 1;
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_LOC_PROT_ERR);
  reconnect();
  // A READ cannot write to a region without local write access.
  MrPtr read_only(ibv_reg_mr(a_.pd.get(), a_.memory.data(), 4096, 0));
  ASSERT_NE(read_only, nullptr);
  sge = {a_.address(), 64, read_only->lkey};
  wr = rdma(IBV_WR_RDMA_READ, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(Access, AnErrorFlushesLaterRequests) {
  ASSERT_EQ(a_.receive(1000, 0, 64), 0);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wrs[3] = {rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0), rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0),
                        rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0)};
  wrs[0].wr.rdma.rkey ^= 1;
  for (size_t i = 0; i < 3; ++i) wrs[i].wr_id = i;
  wrs[0].next = &wrs[1];
  wrs[1].next = &wrs[2];
  wrs[2].send_flags = 0;  // flushed requests complete even if unsignaled
  ASSERT_EQ(a_.send(wrs[0]), 0);
  const ibv_wc_status expected[] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR,
                                    IBV_WC_WR_FLUSH_ERR};
  for (size_t i = 0; i < 3; ++i) {
    const ibv_wc wc = wait_for_completion(a_.cq.get());
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.status, expected[i]);
  }
  const ibv_wc flushed = wait_for_completion(a_.receive_cq.get());
  EXPECT_EQ(flushed.wr_id, 1000u);
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  // A request posted to a queue pair in the error state is accepted and flushed.
  ASSERT_EQ(a_.receive(1001, 0, 64), 0);
  EXPECT_EQ(wait_for_completion(a_.receive_cq.get()).status, IBV_WC_WR_FLUSH_ERR);
}

}  // namespace
}  // namespace verbena::test
