// Completion counters. The test looks up the symbols by version, as a program built against newer
// headers does.
#include <dlfcn.h>

#include <cerrno>

#include "abi/verbs/newer_verbs.h"
#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

using abi::CounterAttach, abi::CounterCapabilities, abi::CounterInit, abi::PublicCounter;

template <typename Function>
Function* symbol(const char* name) {
  void* found = dlvsym(RTLD_DEFAULT, name, "IBVERBS_1.18");
  EXPECT_NE(found, nullptr) << name;
  return reinterpret_cast<Function*>(found);
}

int destroy_counter(PublicCounter* counter) {
  return symbol<int(PublicCounter*)>("ibv_destroy_comp_cntr")(counter);
}
using CounterPtr = std::unique_ptr<PublicCounter, Destroy<destroy_counter>>;

class CompletionCounters : public LoopbackTest {
 protected:
  // Counters are attached before the queue pairs are connected.
  void SetUp() override {
    if (dlvsym(RTLD_DEFAULT, "ibv_create_comp_cntr", "IBVERBS_1.18") == nullptr) {
      FAIL() << "no completion counters";
    }
    LoopbackTest::SetUp();
    a_.qp.reset();
    b_.qp.reset();
    ibv_qp_init_attr init = rc_attributes(a_.cq.get(), a_.receive_cq.get());
    a_.qp.reset(ibv_create_qp(a_.pd.get(), &init));
    init = rc_attributes(b_.cq.get(), b_.receive_cq.get());
    b_.qp.reset(ibv_create_qp(b_.pd.get(), &init));
  }
  void TearDown() override {
    a_.qp.reset();
    b_.qp.reset();
  }
  void join() {
    for (ibv_qp* qp : {a_.qp.get(), b_.qp.get()}) ASSERT_EQ(to_init(qp), 0);
    ASSERT_EQ(to_rtr(a_.qp.get(), b_.qp->qp_num), 0);
    ASSERT_EQ(to_rtr(b_.qp.get(), a_.qp->qp_num), 0);
    for (ibv_qp* qp : {a_.qp.get(), b_.qp.get()}) ASSERT_EQ(to_rts(qp), 0);
  }
  PublicCounter* create(uint32_t type = abi::kCountWorkRequests, uint32_t flags = 0) {
    CounterInit init{0, type, flags};
    errno = 0;
    return symbol<PublicCounter*(ibv_context*, CounterInit*)>("ibv_create_comp_cntr")(
        context_.get(), &init);
  }
  static int attach(ibv_qp* qp, PublicCounter* counter, uint32_t operations) {
    CounterAttach attr{0, operations};
    return symbol<int(ibv_qp*, PublicCounter*, CounterAttach*)>("ibv_qp_attach_comp_cntr")(
        qp, counter, &attr);
  }
  static uint64_t read(PublicCounter* counter, const char* which = "ibv_read_comp_cntr") {
    uint64_t value = UINT64_MAX;
    EXPECT_EQ(symbol<int(PublicCounter*, uint64_t*)>(which)(counter, &value), 0);
    return value;
  }
  static uint64_t errors(PublicCounter* counter) { return read(counter, "ibv_read_err_comp_cntr"); }
  // The program does nothing but read the counter.
  static bool reaches(PublicCounter* counter, uint64_t value) {
    return within_ms(10'000, [&] { return read(counter) == value; });
  }
  int post(ibv_wr_opcode opcode, uint32_t bytes, unsigned flags = 0) {
    ibv_sge sge = a_.sge(0, bytes);
    ibv_send_wr wr = rdma(opcode, &sge, b_, 0);
    wr.send_flags = flags;
    return a_.send(wr);
  }
};

TEST_F(CompletionCounters, ReportTheirCapabilities) {
  CounterCapabilities caps{};
  auto* query = symbol<int(ibv_context*, void*, size_t)>("_ibv_query_comp_cntr_caps");
  ASSERT_EQ(query(context_.get(), &caps, sizeof caps), 0);
  EXPECT_EQ(caps.max_value, UINT64_MAX);
  EXPECT_GT(caps.max_counters, 0u);
  EXPECT_EQ(caps.operations,
            abi::kCountSends | abi::kCountReceives | abi::kCountReads | abi::kCountWrites);
  EXPECT_EQ(query(context_.get(), &caps, sizeof caps - 1), EINVAL);
}

TEST_F(CompletionCounters, CountUnsignaledRequestsByOperation) {
  const CounterPtr writes(create()), reads(create()), sends(create()), receives(create());
  ASSERT_EQ(attach(a_.qp.get(), writes.get(), abi::kCountWrites), 0);
  ASSERT_EQ(attach(a_.qp.get(), reads.get(), abi::kCountReads), 0);
  ASSERT_EQ(attach(a_.qp.get(), sends.get(), abi::kCountSends), 0);
  ASSERT_EQ(attach(b_.qp.get(), receives.get(), abi::kCountReceives), 0);
  join();
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(b_.receive(i, 0, 64), 0);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(post(IBV_WR_RDMA_WRITE, 8), 0);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(post(IBV_WR_RDMA_READ, 8), 0);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(post(IBV_WR_SEND, 8), 0);
  ASSERT_EQ(post(IBV_WR_RDMA_WRITE_WITH_IMM, 8), 0);
  EXPECT_TRUE(reaches(writes.get(), 5));
  EXPECT_TRUE(reaches(reads.get(), 2));
  EXPECT_TRUE(reaches(sends.get(), 2));
  EXPECT_TRUE(reaches(receives.get(), 3));
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(a_.cq.get(), 1, &wc), 0);  // none was signaled
  EXPECT_EQ(errors(writes.get()), 0u);
  TearDown();
}

TEST_F(CompletionCounters, CountBytes) {
  const CounterPtr sent(create(abi::kCountBytes)), received(create(abi::kCountBytes));
  ASSERT_EQ(attach(a_.qp.get(), sent.get(), abi::kCountSends | abi::kCountWrites), 0);
  ASSERT_EQ(attach(b_.qp.get(), received.get(), abi::kCountReceives), 0);
  join();
  ASSERT_EQ(b_.receive(1, 0, 10'000), 0);
  ASSERT_EQ(post(IBV_WR_SEND, 7000), 0);
  ASSERT_EQ(post(IBV_WR_RDMA_WRITE, 300), 0);
  EXPECT_TRUE(reaches(sent.get(), 7300));
  EXPECT_TRUE(reaches(received.get(), 7000));
  TearDown();
}

TEST_F(CompletionCounters, CountErrorsSeparately) {
  const CounterPtr counter(create());
  ASSERT_EQ(attach(a_.qp.get(), counter.get(), abi::kCountWrites | abi::kCountReceives), 0);
  join();
  ASSERT_EQ(a_.receive(1, 0, 64), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(a_.qp.get(), &attr, IBV_QP_STATE), 0);
  ASSERT_EQ(post(IBV_WR_RDMA_WRITE, 8), 0);
  EXPECT_TRUE(within_ms(10'000, [&] { return errors(counter.get()) == 2; }));
  EXPECT_EQ(read(counter.get()), 0u);
  TearDown();
}

TEST_F(CompletionCounters, CountAllAttachedQueuePairsAndOutliveThem) {
  CounterPtr counter(create());
  for (ibv_qp* qp : {a_.qp.get(), b_.qp.get()}) {
    ASSERT_EQ(attach(qp, counter.get(), abi::kCountSends | abi::kCountReceives), 0);
  }
  EXPECT_EQ(attach(a_.qp.get(), counter.get(), abi::kCountReceives | abi::kCountReads), EBUSY);
  join();
  ASSERT_EQ(b_.receive(1, 0, 64), 0);
  ASSERT_EQ(post(IBV_WR_SEND, 8), 0);
  EXPECT_TRUE(reaches(counter.get(), 2));
  EXPECT_EQ(attach(a_.qp.get(), counter.get(), abi::kCountReads), EINVAL);  // in RTS
  a_.qp.reset();
  EXPECT_EQ(destroy_counter(counter.get()), EBUSY);
  b_.qp.reset();
  EXPECT_EQ(destroy_counter(counter.release()), 0);
}

// A program that reads only counters may have a completion queue that is too small.
TEST_F(CompletionCounters, CountCompletionsThatOverrunTheQueue) {
  ibv_cq_init_attr_ex cq_attr{};
  cq_attr.cqe = 1;
  cq_attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  cq_attr.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  b_.qp.reset();
  const CqPtr cq(ibv_cq_ex_to_cq(ibv_create_cq_ex(context_.get(), &cq_attr)));
  ibv_qp_init_attr init = rc_attributes(cq.get(), cq.get());
  b_.qp.reset(ibv_create_qp(b_.pd.get(), &init));
  const CounterPtr receives(create());
  ASSERT_EQ(attach(b_.qp.get(), receives.get(), abi::kCountReceives), 0);
  join();
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(b_.receive(i, 0, 64), 0);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(post(IBV_WR_SEND, 8), 0);
  EXPECT_TRUE(reaches(receives.get(), 4));
  TearDown();
}

TEST_F(CompletionCounters, CanBeSetAndIncremented) {
  const CounterPtr counter(create());
  const auto call = [&](const char* name, uint64_t value) {
    return symbol<int(PublicCounter*, uint64_t)>(name)(counter.get(), value);
  };
  EXPECT_EQ(call("ibv_set_comp_cntr", 40), 0);
  EXPECT_EQ(call("ibv_inc_comp_cntr", 2), 0);
  EXPECT_EQ(call("ibv_set_err_comp_cntr", UINT64_MAX), 0);
  EXPECT_EQ(call("ibv_inc_err_comp_cntr", 2), 0);  // wraps
  EXPECT_EQ(read(counter.get()), 42u);
  EXPECT_EQ(errors(counter.get()), 1u);
}

TEST_F(CompletionCounters, RejectUnsupportedOperations) {
  EXPECT_EQ(create(2), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(create(0, 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  const CounterPtr counter(create());
  EXPECT_EQ(attach(a_.qp.get(), counter.get(), 0), EINVAL);
  EXPECT_EQ(attach(a_.qp.get(), counter.get(), abi::kCountRemoteWrites), EOPNOTSUPP);
  EXPECT_EQ(attach(a_.qp.get(), counter.get(), abi::kCountRemoteReads | abi::kCountSends),
            EOPNOTSUPP);
  const ContextPtr other = open_loopback();
  CounterInit init{};
  const CounterPtr foreign(symbol<PublicCounter*(ibv_context*, CounterInit*)>(
      "ibv_create_comp_cntr")(other.get(), &init));
  EXPECT_EQ(attach(a_.qp.get(), foreign.get(), abi::kCountSends), EINVAL);
}

}  // namespace
}  // namespace verbena::test
