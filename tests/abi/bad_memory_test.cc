// Calls for domains, regions, device memory and windows, each with one invalid argument.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "tests/abi/bad_input_support.h"

namespace verbena::test {
namespace {

constexpr int kNoSuchAccess = 1 << 12;

using BadMemory = BadInputTest;

TEST_F(BadMemory, RejectsInvalidDomainCalls) {
  ibv_context* const c = context_.get();
  const auto parent = [&](auto change) {
    return [&, change] {
      ibv_parent_domain_init_attr attr{};
      attr.pd = a_.pd.get();
      change(attr);
      return code_of(ibv_alloc_parent_domain(c, &attr));
    };
  };
  ibv_td_init_attr thread{kNoSuchBit};
  run({
      {"dealloc_pd: many users", EBUSY, [&] { return ibv_dealloc_pd(a_.pd.get()); }},
      {"dealloc_pd: one AH and one MR", EBUSY, [&] { return ibv_dealloc_pd(second_pd_.get()); }},
      {"dealloc_pd: an SRQ", EBUSY, [&] { return ibv_dealloc_pd(foreign_pd_.get()); }},
      {"dealloc_td: used", EBUSY, [&] { return ibv_dealloc_td(td_.get()); }},
      {"alloc_td: comp_mask", EINVAL, [&] { return code_of(ibv_alloc_td(c, &thread)); }},
      {"alloc_parent_domain: comp_mask", EINVAL, parent([](auto& a) { a.comp_mask = kNoSuchBit; })},
      {"alloc_parent_domain: pd null", EINVAL, parent([](auto& a) { a.pd = nullptr; })},
      {"alloc_parent_domain: pd a parent", EINVAL,
       parent([this](auto& a) { a.pd = parent_.get(); })},
      {"alloc_parent_domain: foreign pd", EINVAL,
       parent([this](auto& a) { a.pd = foreign_pd_.get(); })},
      {"alloc_parent_domain: foreign td", EINVAL,
       parent([this](auto& a) { a.td = foreign_td_.get(); })},
      {"alloc_parent_domain: alloc without free", EINVAL, parent([](auto& a) {
         a.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
         a.alloc = [](ibv_pd*, void*, size_t, size_t, uint64_t) -> void* { return nullptr; };
       })},
  });
}

TEST_F(BadMemory, RejectsInvalidRegistrations) {
  ibv_pd* const pd = a_.pd.get();
  uint8_t* const memory = a_.memory.data();
  const auto reg = [&](void* at, size_t length, int access) {
    return [=] { return code_of(ibv_reg_mr(pd, at, length, access)); };
  };
  const size_t page = 4096;
  void* const hole = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const constant = mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int file = memfd_create("bad input", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, 4096), 0);
  const auto dmabuf = [&](uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    return [=] { return code_of(ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access)); };
  };
  run({
      {"reg_mr: access flag", EINVAL, reg(memory, 64, kNoSuchAccess)},
      {"reg_mr: remote write without local write", EINVAL,
       reg(memory, 64, IBV_ACCESS_REMOTE_WRITE)},
      {"reg_mr: remote atomic without local write", EINVAL,
       reg(memory, 64, IBV_ACCESS_REMOTE_ATOMIC)},
      {"reg_mr: not mapped", EFAULT, reg(hole, page, 0)},
      {"reg_mr: not writable", EFAULT, reg(constant, page, IBV_ACCESS_LOCAL_WRITE)},
      {"reg_mr: null", EFAULT, reg(nullptr, page, 0)},
      {"reg_mr: wraps around", EINVAL, reg(memory, SIZE_MAX, 0)},
      {"reg_mr: everything, not on demand", EINVAL, reg(nullptr, SIZE_MAX, 0)},
      {"reg_mr_iova: wraps around", EINVAL,
       [&] { return code_of(ibv_reg_mr_iova(pd, memory, 64, UINT64_MAX - 1, 0)); }},
      {"reg_dmabuf_mr: not open", EBADF, dmabuf(0, 64, 0, -1, 0)},
      {"reg_dmabuf_mr: access flag", EINVAL, dmabuf(0, 64, 0, file, kNoSuchAccess)},
      {"reg_dmabuf_mr: on demand", EINVAL, dmabuf(0, 64, 0, file, IBV_ACCESS_ON_DEMAND)},
      {"reg_dmabuf_mr: length 0", EINVAL, dmabuf(0, 0, 0, file, 0)},
      {"reg_dmabuf_mr: beyond the end", EINVAL, dmabuf(4000, 97, 4000, file, 0)},
      {"reg_dmabuf_mr: offset beyond the end", EINVAL, dmabuf(UINT64_MAX, 2, 0, file, 0)},
      {"reg_dmabuf_mr: iova elsewhere in its page", EINVAL, dmabuf(0, 64, 1, file, 0)},
      {"dereg_mr: window bound", EBUSY,
       [&] {
         ibv_mw_bind bind{};
         bind.send_flags = IBV_SEND_SIGNALED;
         bind.bind_info = {a_.mr.get(), a_.address(), 64, IBV_ACCESS_REMOTE_READ};
         MwPtr window(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
         EXPECT_EQ(ibv_bind_mw(init_.get(), window.get(), &bind), EINVAL);  // not in RTS
         EXPECT_EQ(ibv_bind_mw(builder_.get(), window.get(), &bind), 0);
         EXPECT_EQ(wait_for_completion(cq_.get()).status, IBV_WC_SUCCESS);
         return ibv_dereg_mr(a_.mr.get());
       }},
  });
  close(file);
  munmap(hole, page);
  munmap(constant, page);
}

TEST_F(BadMemory, RejectsInvalidReregistrationsAndAdvice) {
  constexpr int kRefused = IBV_REREG_MR_ERR_INPUT;
  const auto rereg = [&](int flags, ibv_pd* pd, void* at, size_t length, int access) {
    return [=, this] { return ibv_rereg_mr(a_.mr.get(), flags, pd, at, length, access); };
  };
  uint8_t* const memory = a_.memory.data();
  constexpr int kMove = IBV_REREG_MR_CHANGE_TRANSLATION;
  const auto advise = [&](ibv_advise_mr_advice advice, uint32_t flags, ibv_sge sge,
                          uint32_t count = 1) {
    return [=, this]() mutable {
      return ibv_advise_mr(b_.pd.get(), advice, flags, count != 0 ? &sge : nullptr, count);
    };
  };
  const ibv_sge good = b_.sge(0, 64);
  const auto prefetch = IBV_ADVISE_MR_ADVICE_PREFETCH;
  run({
      {"rereg_mr: no change", kRefused, rereg(0, nullptr, nullptr, 0, 0)},
      {"rereg_mr: flag", kRefused, rereg(1 << 10, nullptr, nullptr, 0, 0)},
      {"rereg_mr: no address", kRefused, rereg(kMove, nullptr, nullptr, 64, 0)},
      {"rereg_mr: length 0", kRefused, rereg(kMove, nullptr, memory, 0, 0)},
      {"rereg_mr: not mapped", kRefused,
       rereg(kMove, nullptr, reinterpret_cast<void*>(4096), 64, 0)},
      {"rereg_mr: wraps around", kRefused, rereg(kMove, nullptr, memory, SIZE_MAX, 0)},
      {"rereg_mr: access not announced", kRefused,
       rereg(kMove, nullptr, memory, 64, IBV_ACCESS_REMOTE_READ)},
      {"rereg_mr: access flag", kRefused,
       rereg(IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kNoSuchAccess)},
      {"rereg_mr: remote write without local write", kRefused,
       rereg(IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_WRITE)},
      {"rereg_mr: pd null", kRefused, rereg(IBV_REREG_MR_CHANGE_PD, nullptr, nullptr, 0, 0)},
      {"rereg_mr: foreign pd", kRefused,
       rereg(IBV_REREG_MR_CHANGE_PD, foreign_pd_.get(), nullptr, 0, 0)},
      {"rereg_mr: device memory", kRefused,
       [&] {
         return ibv_rereg_mr(dm_mr_.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0);
       }},
      {"advise_mr: advice", EOPNOTSUPP, advise(no_such<ibv_advise_mr_advice>(99), 0, good)},
      {"advise_mr: flag", EINVAL, advise(prefetch, kNoSuchBit, good)},
      {"advise_mr: no range", EINVAL, advise(prefetch, 0, good, 0)},
      {"advise_mr: no such lkey", EFAULT, advise(prefetch, 0, {good.addr, 64, 0})},
      {"advise_mr: beyond the region", EFAULT,
       advise(prefetch, 0, b_.sge(b_.memory.size() - 8, 16))},
      {"advise_mr: another PD's", EPERM, advise(prefetch, 0, a_.sge(0, 64))},
      {"advise_mr: to write what is read-only", EPERM,
       advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, {good.addr, 64, read_only_->lkey})},
  });
}

TEST_F(BadMemory, RejectsInvalidDeviceMemoryAndWindowCalls) {
  ibv_context* const c = context_.get();
  const auto allocate = [&](size_t length, uint32_t log_align, uint32_t comp_mask) {
    return [=] {
      ibv_alloc_dm_attr attr{length, log_align, comp_mask};
      return code_of(ibv_alloc_dm(c, &attr));
    };
  };
  const auto reg = [&](ibv_pd* pd, uint64_t offset, size_t length, unsigned access) {
    return [=, this] { return code_of(ibv_reg_dm_mr(pd, dm_.get(), offset, length, access)); };
  };
  ibv_pd* const pd = a_.pd.get();
  uint8_t bytes[8] = {};
  ibv_mw_bind bind{};
  bind.bind_info = {a_.mr.get(), a_.address(), 64, 0};
  run({
      {"alloc_dm: length 0", EINVAL, allocate(0, 0, 0)},
      {"alloc_dm: more than there is", ENOMEM, allocate(SIZE_MAX, 0, 0)},
      {"alloc_dm: alignment", EINVAL, allocate(64, 13, 0)},
      {"alloc_dm: alignment of no number", EINVAL, allocate(64, 64, 0)},
      {"alloc_dm: comp_mask", EINVAL, allocate(64, 0, kNoSuchBit)},
      {"reg_dm_mr: foreign pd", EINVAL, reg(foreign_pd_.get(), 0, 64, IBV_ACCESS_ZERO_BASED)},
      {"reg_dm_mr: not zero-based", EINVAL, reg(pd, 0, 64, 0)},
      {"reg_dm_mr: on demand", EINVAL,
       reg(pd, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND)},
      {"reg_dm_mr: access flag", EINVAL, reg(pd, 0, 64, IBV_ACCESS_ZERO_BASED | kNoSuchAccess)},
      {"reg_dm_mr: beyond the end", EINVAL, reg(pd, 4090, 7, IBV_ACCESS_ZERO_BASED)},
      {"reg_dm_mr: offset beyond the end", EINVAL, reg(pd, UINT64_MAX, 2, IBV_ACCESS_ZERO_BASED)},
      {"memcpy_to_dm: beyond the end", EFAULT,
       [&] { return ibv_memcpy_to_dm(dm_.get(), 4092, bytes, 8); }},
      {"memcpy_to_dm: odd offset", EINVAL,
       [&] { return ibv_memcpy_to_dm(dm_.get(), 2, bytes, 4); }},
      {"memcpy_to_dm: odd length", EINVAL,
       [&] { return ibv_memcpy_to_dm(dm_.get(), 0, bytes, 7); }},
      {"memcpy_from_dm: beyond the end", EFAULT,
       [&] { return ibv_memcpy_from_dm(bytes, dm_.get(), UINT64_MAX - 3, 8); }},
      {"memcpy_from_dm: odd offset", EINVAL,
       [&] { return ibv_memcpy_from_dm(bytes, dm_.get(), 1, 4); }},
      {"memcpy_from_dm: odd length", EINVAL,
       [&] { return ibv_memcpy_from_dm(bytes, dm_.get(), 4, 2); }},
      {"free_dm: registered", EBUSY, [&] { return ibv_free_dm(dm_.get()); }},
      {"alloc_mw: type 0", EINVAL,
       [&] { return code_of(ibv_alloc_mw(pd, no_such<ibv_mw_type>(0))); }},
      {"alloc_mw: type 3", EINVAL,
       [&] { return code_of(ibv_alloc_mw(pd, no_such<ibv_mw_type>(3))); }},
      {"bind_mw: type 2", EINVAL, [&] { return ibv_bind_mw(a_.qp.get(), window2_.get(), &bind); },
       false},
      {"bind_mw: before RTS", EINVAL,
       [&] { return ibv_bind_mw(init_.get(), window1_.get(), &bind); }},
      {"bind_mw: flag", EINVAL,
       [&] {
         ibv_mw_bind bad = bind;
         bad.send_flags = 1u << 20;
         return ibv_bind_mw(a_.qp.get(), window1_.get(), &bad);
       }},
      {"bind_mw: on UD", EINVAL, [&] { return ibv_bind_mw(ud_.get(), window1_.get(), &bind); }},
  });
}

}  // namespace
}  // namespace verbena::test
