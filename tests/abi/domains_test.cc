// Thread domains and parent domains.
#include <cerrno>
#include <cstdlib>

#include "abi/verbs/newer_verbs.h"
#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

using TdPtr = std::unique_ptr<ibv_td, Destroy<ibv_dealloc_td>>;

// The program's allocator, with counts of its calls.
struct Arena {
  enum class Reply { Memory, Default, Null } reply = Reply::Memory;
  int allocated = 0;
  int freed = 0;
  ibv_pd* pd = nullptr;
  ibv_context* verbs_on = nullptr;  // a device to use during a call

  void call_verbs(void* memory) const {
    if (verbs_on == nullptr) return;
    const PdPtr own(ibv_alloc_pd(verbs_on));
    const MrPtr mr(ibv_reg_mr(own.get(), memory, 64, IBV_ACCESS_LOCAL_WRITE));
    EXPECT_NE(mr, nullptr);
  }
  static void* alloc(ibv_pd* pd, void* context, size_t size, size_t alignment, uint64_t) {
    auto& arena = *static_cast<Arena*>(context);
    arena.pd = pd;
    if (arena.reply == Reply::Null) return nullptr;
    if (arena.reply == Reply::Default) return IBV_ALLOCATOR_USE_DEFAULT;
    ++arena.allocated;
    void* memory = nullptr;
    if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), size) != 0) return nullptr;
    std::memset(memory, 0xEE, size);
    arena.call_verbs(memory);
    return memory;
  }
  static void free(ibv_pd*, void* context, void* memory, uint64_t) {
    auto& arena = *static_cast<Arena*>(context);
    ++arena.freed;
    arena.call_verbs(memory);
    std::free(memory);
  }
};

class Domains : public LoopbackTest {
 protected:
  ibv_parent_domain_init_attr attributes() {
    ibv_parent_domain_init_attr attr{};
    attr.pd = a_.pd.get();
    attr.td = td_.get();
    attr.comp_mask =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    attr.alloc = Arena::alloc;
    attr.free = Arena::free;
    attr.pd_context = &arena_;
    return attr;
  }
  ibv_cq_ex* create_cq(ibv_pd* parent) {
    ibv_cq_init_attr_ex attr{};
    attr.cqe = 100;
    attr.wc_flags = IBV_WC_STANDARD_FLAGS;
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    attr.parent_domain = parent;
    return ibv_create_cq_ex(context_.get(), &attr);
  }
  void SetUp() override {
    LoopbackTest::SetUp();
    ibv_td_init_attr attr{};
    td_.reset(ibv_alloc_td(context_.get(), &attr));
    ASSERT_NE(td_, nullptr);
  }
  Arena arena_;
  TdPtr td_;
};

TEST_F(Domains, ThreadDomainsCountTheirUsers) {
  ibv_td_init_attr bad{1};
  EXPECT_EQ(ibv_alloc_td(context_.get(), &bad), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_parent_domain_init_attr attr = attributes();
  PdPtr parent(ibv_alloc_parent_domain(context_.get(), &attr));
  ASSERT_NE(parent, nullptr);
  EXPECT_EQ(ibv_dealloc_td(td_.get()), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(a_.pd.get()), EBUSY);
}

TEST_F(Domains, AcceptsUnprotectedMemoryAndUsesPlainMemory) {
  ibv_parent_domain_init_attr attr{};
  attr.pd = a_.pd.get();
  attr.comp_mask = abi::kParentAllowsUnprotected;
  PdPtr parent(ibv_alloc_parent_domain(context_.get(), &attr));
  ASSERT_NE(parent, nullptr);
  const CqPtr cq(ibv_cq_ex_to_cq(create_cq(parent.get())));
  EXPECT_NE(cq, nullptr);
  auto* ops = reinterpret_cast<const abi::NewerOps*>(verbs_get_ctx(context_.get())) - 1;
  abi::Buffer* buffer = nullptr;
  void* memory = ops->alloc_buf(parent.get(), 4096, &buffer);
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 0x5A, 4096);
  const MrPtr mr(ibv_reg_mr(parent.get(), memory, 4096, IBV_ACCESS_LOCAL_WRITE));
  EXPECT_NE(mr, nullptr);
  ops->free_buf(buffer);
}

// A parent domain can be used as a protection domain everywhere, mixed with its protection domain.
TEST_F(Domains, AParentDomainWorksAsAProtectionDomain) {
  ibv_parent_domain_init_attr attr = attributes();
  PdPtr parent(ibv_alloc_parent_domain(context_.get(), &attr));
  ASSERT_NE(parent, nullptr);
  a_.qp.reset();
  b_.qp.reset();
  MrPtr mr(ibv_reg_mr(parent.get(), a_.memory.data(), 4096, kAllAccess));
  ASSERT_NE(mr, nullptr);
  MwPtr mw(ibv_alloc_mw(parent.get(), IBV_MW_TYPE_2));
  ASSERT_NE(mw, nullptr);
  CqPtr cq(ibv_cq_ex_to_cq(create_cq(parent.get())));
  ASSERT_NE(cq, nullptr);
  ibv_qp_init_attr_ex init{};
  init.send_cq = init.recv_cq = cq.get();
  init.qp_type = IBV_QPT_RC;
  init.cap = {16, 16, 2, 2, 0};
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = parent.get();
  init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
  QpPtr qp(ibv_create_qp_ex(context_.get(), &init));
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(qp->pd, parent.get());
  EXPECT_EQ(ibv_dealloc_pd(parent.get()), EBUSY);
  ibv_qp_init_attr plain = rc_attributes(b_.cq.get(), b_.receive_cq.get());
  b_.qp.reset(ibv_create_qp(b_.pd.get(), &plain));
  ASSERT_EQ(to_init(qp.get()), 0);
  ASSERT_EQ(to_init(b_.qp.get()), 0);
  ASSERT_EQ(to_rtr(qp.get(), b_.qp->qp_num), 0);
  ASSERT_EQ(to_rtr(b_.qp.get(), qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp.get()), 0);
  ibv_qp_ex* x = ibv_qp_to_qp_ex(qp.get());
  x->wr_flags = IBV_SEND_SIGNALED;
  for (const uint32_t lkey : {mr->lkey, a_.mr->lkey}) {  // both are the same domain
    ibv_wr_start(x);
    ibv_wr_rdma_write(x, b_.mr->rkey, b_.address());
    ibv_wr_set_sge(x, lkey, a_.address(), 64);
    ASSERT_EQ(ibv_wr_complete(x), 0);
    EXPECT_EQ(wait_for_completion(cq.get()).status, IBV_WC_SUCCESS);
  }
}

// A queue pair of the protection domain uses a shared receive queue of the parent domain.
TEST_F(Domains, SharedReceiveQueueOfAParentDomainServesBothDomains) {
  ibv_parent_domain_init_attr attr = attributes();
  attr.pd = b_.pd.get();
  PdPtr parent(ibv_alloc_parent_domain(context_.get(), &attr));
  ASSERT_NE(parent, nullptr);
  ibv_srq_init_attr shared{};
  shared.attr = {8, 1, 0};
  ibv_srq* srq = ibv_create_srq(parent.get(), &shared);
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(srq->pd, parent.get());
  EXPECT_EQ(ibv_dealloc_pd(parent.get()), EBUSY);
  for (ibv_pd* pd : {parent.get(), b_.pd.get()}) {
    a_.qp.reset();
    b_.qp.reset();
    ibv_qp_init_attr init = rc_attributes(a_.cq.get(), a_.receive_cq.get());
    a_.qp.reset(ibv_create_qp(a_.pd.get(), &init));
    init = rc_attributes(b_.cq.get(), b_.receive_cq.get());
    init.srq = srq;
    b_.qp.reset(ibv_create_qp(pd, &init));
    ASSERT_NE(b_.qp, nullptr);
    EXPECT_EQ(ibv_destroy_srq(srq), EBUSY);
    for (Side* side : {&a_, &b_}) ASSERT_EQ(to_init(side->qp.get()), 0);
    ASSERT_EQ(to_rtr(a_.qp.get(), b_.qp->qp_num), 0);
    ASSERT_EQ(to_rtr(b_.qp.get(), a_.qp->qp_num), 0);
    ASSERT_EQ(to_rts(a_.qp.get()), 0);
    ibv_sge room = b_.sge(0, 64);  // registered in the domain itself
    ibv_recv_wr receive{3, nullptr, &room, 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_srq_recv(srq, &receive, &bad), 0);
    ibv_sge sge = a_.sge(0, 64);
    ibv_send_wr wr = rdma(IBV_WR_SEND, &sge, b_, 0);
    ASSERT_EQ(a_.send(wr), 0);
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
    const ibv_wc wc = wait_for_completion(b_.receive_cq.get());
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, 3u);
  }
  b_.qp.reset();
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Domains, CompletionQueuesUseTheProgramsAllocator) {
  ibv_parent_domain_init_attr attr = attributes();
  PdPtr parent(ibv_alloc_parent_domain(context_.get(), &attr));
  ibv_cq_ex* cq = create_cq(parent.get());
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(arena_.allocated, 1);
  EXPECT_EQ(arena_.pd, parent.get());
  EXPECT_EQ(ibv_dealloc_pd(parent.get()), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  EXPECT_EQ(arena_.freed, 1);

  arena_.reply = Arena::Reply::Default;
  cq = create_cq(parent.get());
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  EXPECT_EQ(arena_.freed, 1);

  arena_.reply = Arena::Reply::Null;
  EXPECT_EQ(create_cq(parent.get()), nullptr);
  EXPECT_EQ(errno, ENOMEM);
}

TEST_F(Domains, ResizeUsesTheProgramsAllocator) {
  ibv_parent_domain_init_attr attr = attributes();
  PdPtr parent(ibv_alloc_parent_domain(context_.get(), &attr));
  CqPtr cq(ibv_cq_ex_to_cq(create_cq(parent.get())));
  ASSERT_EQ(ibv_resize_cq(cq.get(), 1000), 0);
  EXPECT_EQ(arena_.allocated, 2);
  EXPECT_EQ(arena_.freed, 1);

  arena_.reply = Arena::Reply::Null;
  EXPECT_EQ(ibv_resize_cq(cq.get(), 2000), ENOMEM);
  EXPECT_EQ(cq->cqe, 1000);
  arena_.reply = Arena::Reply::Default;
  ASSERT_EQ(ibv_resize_cq(cq.get(), 2000), 0);
  EXPECT_EQ(arena_.freed, 2);
}

// An allocator that registers its memory calls verbs itself, also during a resize.
TEST_F(Domains, TheAllocatorMayCallVerbs) {
  arena_.verbs_on = context_.get();
  ibv_parent_domain_init_attr attr = attributes();
  PdPtr parent(ibv_alloc_parent_domain(context_.get(), &attr));
  CqPtr cq(ibv_cq_ex_to_cq(create_cq(parent.get())));
  ASSERT_NE(cq, nullptr);
  ASSERT_EQ(ibv_resize_cq(cq.get(), 1000), 0);
  cq.reset();
  EXPECT_EQ(arena_.allocated, 2);
  EXPECT_EQ(arena_.freed, 2);
}

TEST_F(Domains, RejectsInvalidAttributes) {
  const auto refused = [&](const std::function<void(ibv_parent_domain_init_attr&)>& change) {
    ibv_parent_domain_init_attr attr = attributes();
    change(attr);
    errno = 0;
    EXPECT_EQ(ibv_alloc_parent_domain(context_.get(), &attr), nullptr);
    return errno;
  };
  EXPECT_EQ(refused([](auto& a) { a.pd = nullptr; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.comp_mask |= 8; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.alloc = nullptr; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.free = nullptr; }), EINVAL);
  ContextPtr other = open_loopback();
  PdPtr foreign(ibv_alloc_pd(other.get()));
  EXPECT_EQ(refused([&](auto& a) { a.pd = foreign.get(); }), EINVAL);
  ibv_parent_domain_init_attr attr = attributes();
  PdPtr parent(ibv_alloc_parent_domain(context_.get(), &attr));
  EXPECT_EQ(refused([&](auto& a) { a.pd = parent.get(); }), EINVAL);
}

}  // namespace
}  // namespace verbena::test
