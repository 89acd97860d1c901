// Every call that makes, changes, asks about or destroys an object, with each of its arguments
// wrong in turn.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "tests/abi/bad_input_support.h"

namespace verbena::test {
namespace {

constexpr uint32_t kNoSuchBit = 1u << 31;
constexpr int kNoSuchAccess = 1 << 12;

using BadObjects = BadInputTest;

TEST_F(BadObjects, DevicesAndPorts) {
  ibv_port_attr port{};
  ibv_gid gid{};
  ibv_gid_entry entry{};
  __be16 pkey = 0;
  ibv_device_attr_ex device{};
  ibv_query_device_ex_input input{kNoSuchBit};
  ibv_values_ex values{kNoSuchBit, {}};
  ibv_ah_attr ah{};
  uint8_t mac[6];
  uint16_t vlan = 0;
  ibv_context* const c = context_.get();
  const uint32_t gids = [&] {
    EXPECT_EQ(ibv_query_port(c, 1, &port), 0);
    return static_cast<uint32_t>(port.gid_tbl_len);
  }();
  const int last = static_cast<int>(gids);
  run({
      {"query_port: port 0", EINVAL, [&] { return ibv_query_port(c, 0, &port); }},
      {"query_port: port 2", EINVAL, [&] { return ibv_query_port(c, 2, &port); }},
      {"query_gid: port 2", EINVAL,
       [&] { return code_of_minus_one(ibv_query_gid(c, 2, 0, &gid)); }},
      {"query_gid: index -1", EINVAL,
       [&] { return code_of_minus_one(ibv_query_gid(c, 1, -1, &gid)); }},
      {"query_gid: beyond the table", EINVAL,
       [&] { return code_of_minus_one(ibv_query_gid(c, 1, last, &gid)); }},
      {"query_gid_ex: port 2", EINVAL, [&] { return ibv_query_gid_ex(c, 2, 0, &entry, 0); }},
      {"query_gid_ex: beyond the table", EINVAL,
       [&] { return ibv_query_gid_ex(c, 1, gids, &entry, 0); }},
      {"query_gid_ex: empty entry", ENODATA,
       [&] { return ibv_query_gid_ex(c, 1, gids - 1, &entry, 0); }, false},
      {"query_gid_ex: flag", EINVAL, [&] { return ibv_query_gid_ex(c, 1, 0, &entry, 1); }},
      {"query_gid_table: no room", -EINVAL,
       [&] { return static_cast<int>(ibv_query_gid_table(c, &entry, 0, 0)); }},
      {"query_gid_table: flag", -EINVAL,
       [&] { return static_cast<int>(ibv_query_gid_table(c, &entry, 1, 1)); }},
      {"query_pkey: port 2", EINVAL,
       [&] { return code_of_minus_one(ibv_query_pkey(c, 2, 0, &pkey)); }},
      {"query_pkey: index 1", EINVAL,
       [&] { return code_of_minus_one(ibv_query_pkey(c, 1, 1, &pkey)); }},
      {"query_pkey: index -1", EINVAL,
       [&] { return code_of_minus_one(ibv_query_pkey(c, 1, -1, &pkey)); }},
      {"query_device_ex: comp_mask", EINVAL,
       [&] { return ibv_query_device_ex(c, &input, &device); }, false},
      {"query_rt_values: comp_mask", EINVAL, [&] { return ibv_query_rt_values_ex(c, &values); }},
      {"resolve_eth_l2", -EOPNOTSUPP,
       [&] { return ibv_resolve_eth_l2_from_gid(c, &ah, mac, &vlan); }},
  });
}

TEST_F(BadObjects, Imports) {
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  ibv_context* const c = context_.get();
  run({
      {"import_device: not open", EBADF, [&] { return code_of(ibv_import_device(-1)); }},
      {"import_device: another file", EINVAL, [&] { return code_of(ibv_import_device(file)); }},
      {"import_pd: no such handle", EINVAL, [&] { return code_of(ibv_import_pd(c, UINT32_MAX)); }},
      {"import_pd: of another context", EINVAL,
       [&] { return code_of(ibv_import_pd(c, foreign_pd_->handle)); }},
      {"import_mr: no such handle", EINVAL, [&] { return code_of(ibv_import_mr(a_.pd.get(), 0)); }},
      {"import_mr: of another PD", EINVAL,
       [&] { return code_of(ibv_import_mr(a_.pd.get(), second_mr_->handle)); }},
      {"import_dm: no such handle", EINVAL, [&] { return code_of(ibv_import_dm(c, UINT32_MAX)); }},
  });
  close(file);
}

TEST_F(BadObjects, CompletionQueues) {
  ibv_context* const c = context_.get();
  const auto create = [&](int cqe, int vector, ibv_comp_channel* channel = nullptr) {
    return [=] { return code_of(ibv_create_cq(c, cqe, nullptr, channel, vector)); };
  };
  const auto create_ex = [&](auto change) {
    return [=] {
      ibv_cq_init_attr_ex attr{};
      attr.cqe = 4;
      change(attr);
      return code_of(ibv_create_cq_ex(c, &attr));
    };
  };
  const auto resize = [&](int cqe) { return [&, cqe] { return ibv_resize_cq(cq_.get(), cqe); }; };
  ibv_modify_cq_attr modify{kNoSuchBit, {}};
  ibv_poll_cq_attr poll{kNoSuchBit};
  ibv_poll_cq_attr good_poll{0};
  run({
      {"create_cq: cqe 0", EINVAL, create(0, 0)},
      {"create_cq: cqe -1", EINVAL, create(-1, 0)},
      {"create_cq: cqe beyond max_cqe", EINVAL, create(limits_.max_cqe + 1, 0)},
      {"create_cq: comp_vector -1", EINVAL, create(1, -1)},
      {"create_cq: comp_vector too large", EINVAL, create(1, c->num_comp_vectors)},
      {"create_cq: foreign channel", EINVAL, create(1, 0, foreign_channel_.get())},
      {"create_cq_ex: comp_mask", EINVAL, create_ex([](auto& a) { a.comp_mask = kNoSuchBit; }),
       false},
      {"create_cq_ex: wc_flags unknown", EOPNOTSUPP,
       create_ex([](auto& a) { a.wc_flags = uint64_t{1} << 40; })},
      {"create_cq_ex: wc_flags tag matching", EOPNOTSUPP,
       create_ex([](auto& a) { a.wc_flags = IBV_WC_EX_WITH_TM_INFO; })},
      {"create_cq_ex: flags", EOPNOTSUPP, create_ex([](auto& a) {
         a.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
         a.flags = kNoSuchBit;
       })},
      {"create_cq_ex: parent_domain null", EINVAL,
       create_ex([](auto& a) { a.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD; })},
      {"create_cq_ex: parent_domain plain", EINVAL, create_ex([this](auto& a) {
         a.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
         a.parent_domain = a_.pd.get();
       })},
      {"create_cq_ex: cqe 0", EINVAL, create_ex([](auto& a) { a.cqe = 0; })},
      {"create_cq_ex: cqe huge", EINVAL, create_ex([](auto& a) { a.cqe = UINT32_MAX; })},
      {"create_cq_ex: comp_vector", EINVAL, create_ex([](auto& a) { a.comp_vector = UINT32_MAX; })},
      {"create_cq_ex: foreign channel", EINVAL,
       create_ex([this](auto& a) { a.channel = foreign_channel_.get(); })},
      {"resize_cq: 0", EINVAL, resize(0)},
      {"resize_cq: -1", EINVAL, resize(-1)},
      {"resize_cq: beyond max_cqe", EINVAL, resize(limits_.max_cqe + 1)},
      {"modify_cq: attr_mask", EINVAL, [&] { return ibv_modify_cq(cq_.get(), &modify); }},
      {"start_poll: comp_mask", EINVAL, [&] { return ibv_start_poll(cq_ex_.get(), &poll); }},
      {"start_poll: empty", ENOENT, [&] { return ibv_start_poll(cq_ex_.get(), &good_poll); },
       false},
      {"destroy_cq: used by queue pairs", EBUSY, [&] { return ibv_destroy_cq(a_.cq.get()); }},
      {"destroy_comp_channel: used", EBUSY,
       [&] { return ibv_destroy_comp_channel(a_.channel.get()); }},
  });
}

// Until all that was posted has completed, without polling; then back to RTS.
void wait_until_drained(ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  ibv_qp_init_attr init;
  do {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the send queue does not drain";
    ASSERT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
  } while (attr.sq_draining != 0);
  attr.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

TEST_F(BadObjects, CompletionQueueSmallerThanWhatWaits) {
  ibv_sge sge = a_.sge(0, 1);
  for (int i = 0; i < 3; ++i) {
    ibv_send_wr write = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    ASSERT_EQ(a_.send(write), 0);
  }
  ASSERT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  wait_until_drained(a_.qp.get());
  const int before = a_.cq->cqe;
  EXPECT_EQ(ibv_resize_cq(a_.cq.get(), 1), EINVAL);
  EXPECT_EQ(a_.cq->cqe, before);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(ibv_resize_cq(a_.cq.get(), 1), 0);
}

TEST_F(BadObjects, Domains) {
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

TEST_F(BadObjects, Regions) {
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
      {"reg_mr: remote write alone", EINVAL, reg(memory, 64, IBV_ACCESS_REMOTE_WRITE)},
      {"reg_mr: remote atomic alone", EINVAL, reg(memory, 64, IBV_ACCESS_REMOTE_ATOMIC)},
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

TEST_F(BadObjects, ChangingRegions) {
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
      {"rereg_mr: remote write alone", kRefused,
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

TEST_F(BadObjects, DeviceMemoryAndWindows) {
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
      {"memcpy_to_dm: beyond the end", EINVAL,
       [&] { return ibv_memcpy_to_dm(dm_.get(), 4090, bytes, 8); }},
      {"memcpy_from_dm: beyond the end", EINVAL,
       [&] { return ibv_memcpy_from_dm(bytes, dm_.get(), UINT64_MAX, 8); }},
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

TEST_F(BadObjects, AddressHandlesAndGroups) {
  const auto create = [&](auto change) {
    return [&, change] {
      ibv_ah_attr attr = address();
      change(attr);
      return code_of(ibv_create_ah(a_.pd.get(), &attr));
    };
  };
  ibv_wc wc{};
  ibv_wc with_header{};
  with_header.wc_flags = IBV_WC_GRH;
  ibv_grh nonsense;
  std::memset(&nonsense, 0xFF, sizeof nonsense);
  ibv_ah_attr found{};
  ibv_gid group{}, other{};
  group.raw[10] = group.raw[11] = 0xFF;
  group.raw[12] = 239;
  group.raw[15] = 77;
  other = group;
  other.raw[15] = 78;
  const ibv_gid host = address().grh.dgid;
  run({
      {"create_ah: no GRH", EINVAL, create([](auto& a) { a.is_global = 0; })},
      {"create_ah: port 0", EINVAL, create([](auto& a) { a.port_num = 0; })},
      {"create_ah: port 2", EINVAL, create([](auto& a) { a.port_num = 2; })},
      {"create_ah: sgid_index empty", EINVAL, create([](auto& a) { a.grh.sgid_index = 60; })},
      {"create_ah: sgid_index beyond the table", EINVAL,
       create([](auto& a) { a.grh.sgid_index = 255; })},
      {"create_ah: no destination", EINVAL, create([](auto& a) { a.grh.dgid = {}; })},
      {"create_ah: the other IP version", EINVAL,
       create([](auto& a) { a.grh.dgid.raw[0] = 0x20; })},
      {"create_ah_from_wc: no header", EINVAL,
       [&] { return code_of(ibv_create_ah_from_wc(a_.pd.get(), &wc, &nonsense, 1)); }},
      {"create_ah_from_wc: nonsense", EINVAL,
       [&] { return code_of(ibv_create_ah_from_wc(a_.pd.get(), &with_header, &nonsense, 1)); }},
      {"create_ah_from_wc: port", EINVAL,
       [&] { return code_of(ibv_create_ah_from_wc(a_.pd.get(), &with_header, &nonsense, 2)); }},
      {"init_ah_from_wc: null header", EINVAL,
       [&] {
         return code_of_minus_one(
             ibv_init_ah_from_wc(context_.get(), 1, &with_header, nullptr, &found));
       }},
      {"attach_mcast: RC", EINVAL, [&] { return ibv_attach_mcast(a_.qp.get(), &group, 0); }},
      {"attach_mcast: no group", EINVAL, [&] { return ibv_attach_mcast(ud_.get(), &host, 0); }},
      {"detach_mcast: not attached", EINVAL,
       [&] { return ibv_detach_mcast(ud_.get(), &group, 0); }},
  });
  ASSERT_EQ(ibv_attach_mcast(ud_.get(), &group, 0), 0);
  run({
      {"detach_mcast: another group", EINVAL,
       [&] { return ibv_detach_mcast(ud_.get(), &other, 0); }},
      {"destroy_qp: attached", EBUSY, [&] { return ibv_destroy_qp(ud_.get()); }},
  });
  EXPECT_EQ(ibv_detach_mcast(ud_.get(), &group, 0), 0);
}

TEST_F(BadObjects, SharedReceiveQueues) {
  ibv_context* const c = context_.get();
  const auto create = [&](uint32_t max_wr, uint32_t max_sge) {
    return [=, this] {
      ibv_srq_init_attr init{nullptr, {max_wr, max_sge, 0}};
      return code_of(ibv_create_srq(a_.pd.get(), &init));
    };
  };
  const auto create_ex = [&](auto change) {
    return [&, change] {
      ibv_srq_init_attr_ex init{};
      init.attr = {2, 1, 0};
      init.srq_type = IBV_SRQT_XRC;
      init.pd = a_.pd.get();
      init.xrcd = xrcd_.get();
      init.cq = cq_.get();
      init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                       IBV_SRQ_INIT_ATTR_CQ;
      change(init);
      return code_of(ibv_create_srq_ex(c, &init));
    };
  };
  const auto modify = [&](uint32_t max_wr, uint32_t limit, int mask) {
    return [=, this] {
      ibv_srq_attr attr{max_wr, 0, limit};
      return ibv_modify_srq(srq_.get(), &attr, mask);
    };
  };
  const auto max_wr = static_cast<uint32_t>(limits_.max_srq_wr);
  const auto max_sge = static_cast<uint32_t>(limits_.max_srq_sge);
  run({
      {"create_srq: max_wr", EINVAL, create(max_wr + 1, 1)},
      {"create_srq: max_sge", EINVAL, create(1, max_sge + 1)},
      {"create_srq_ex: comp_mask", EINVAL, create_ex([](auto& i) { i.comp_mask |= kNoSuchBit; })},
      {"create_srq_ex: no pd", EINVAL,
       create_ex([](auto& i) { i.comp_mask = IBV_SRQ_INIT_ATTR_TYPE; })},
      {"create_srq_ex: pd null", EINVAL, create_ex([](auto& i) { i.pd = nullptr; })},
      {"create_srq_ex: foreign pd", EINVAL,
       create_ex([this](auto& i) { i.pd = foreign_pd_.get(); })},
      {"create_srq_ex: type", EINVAL,
       create_ex([](auto& i) { i.srq_type = no_such<ibv_srq_type>(99); })},
      {"create_srq_ex: tag matching", EOPNOTSUPP,
       create_ex([](auto& i) { i.srq_type = IBV_SRQT_TM; })},
      {"create_srq_ex: XRC without domain", EINVAL,
       create_ex([](auto& i) { i.comp_mask &= ~uint32_t{IBV_SRQ_INIT_ATTR_XRCD}; })},
      {"create_srq_ex: XRC, domain null", EINVAL, create_ex([](auto& i) { i.xrcd = nullptr; })},
      {"create_srq_ex: XRC, foreign domain", EINVAL,
       create_ex([this](auto& i) { i.xrcd = foreign_xrcd_.get(); })},
      {"create_srq_ex: XRC without CQ", EINVAL,
       create_ex([](auto& i) { i.comp_mask &= ~uint32_t{IBV_SRQ_INIT_ATTR_CQ}; })},
      {"create_srq_ex: XRC, CQ null", EINVAL, create_ex([](auto& i) { i.cq = nullptr; })},
      {"create_srq_ex: XRC, foreign CQ", EINVAL,
       create_ex([this](auto& i) { i.cq = foreign_cq_.get(); })},
      {"create_srq_ex: max_wr", EINVAL,
       create_ex([max_wr](auto& i) { i.attr.max_wr = max_wr + 1; })},
      {"modify_srq: mask", EINVAL, modify(4, 0, 1 << 5)},
      {"modify_srq: max_wr 0", EINVAL, modify(0, 0, IBV_SRQ_MAX_WR)},
      {"modify_srq: max_wr below what is posted", EINVAL, modify(1, 0, IBV_SRQ_MAX_WR)},
      {"modify_srq: max_wr beyond the device's", EINVAL, modify(max_wr + 1, 0, IBV_SRQ_MAX_WR)},
      {"modify_srq: limit beyond max_wr", EINVAL, modify(0, 3, IBV_SRQ_LIMIT)},
      {"modify_srq: good size, bad limit", EINVAL, modify(4, 5, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)},
      {"destroy_srq: used", EBUSY, [&] { return ibv_destroy_srq(srq_.get()); }},
  });
}

TEST_F(BadObjects, XrcDomains) {
  ibv_context* const c = context_.get();
  const int file = memfd_create("bad input", MFD_CLOEXEC);
  const auto open_domain = [&](uint32_t mask, int fd, int flags) {
    return [=] {
      ibv_xrcd_init_attr init{mask, fd, flags};
      return code_of(ibv_open_xrcd(c, &init));
    };
  };
  constexpr uint32_t kBoth = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  ibv_xrcd_init_attr shared{kBoth, file, O_CREAT};
  run({{"open_xrcd: no domain, no O_CREAT", EAGAIN, open_domain(kBoth, file, 0)}});
  const Released<ibv_xrcd> domain(ibv_open_xrcd(c, &shared));
  ASSERT_NE(domain, nullptr);
  const auto open_qp = [&](auto change) {
    return [&, change] {
      ibv_qp_open_attr open{};
      open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
      open.qp_num = xrc_receive_->qp_num;
      open.xrcd = xrcd_.get();
      open.qp_type = IBV_QPT_XRC_RECV;
      change(open);
      return code_of(ibv_open_qp(c, &open));
    };
  };
  run({
      {"open_xrcd: comp_mask empty", EINVAL, open_domain(0, -1, 0)},
      {"open_xrcd: comp_mask half", EINVAL, open_domain(IBV_XRCD_INIT_ATTR_FD, -1, 0)},
      {"open_xrcd: comp_mask unknown", EINVAL, open_domain(kBoth | kNoSuchBit, -1, 0)},
      {"open_xrcd: not open", EBADF, open_domain(kBoth, 9999, O_CREAT)},
      {"open_xrcd: O_EXCL and there", EINVAL, open_domain(kBoth, file, O_CREAT | O_EXCL)},
      {"close_xrcd: used", EBUSY, [&] { return ibv_close_xrcd(xrcd_.get()); }},
      {"open_qp: comp_mask empty", EINVAL, open_qp([](auto& o) { o.comp_mask = 0; })},
      {"open_qp: comp_mask unknown", EINVAL, open_qp([](auto& o) { o.comp_mask |= kNoSuchBit; })},
      {"open_qp: type", EINVAL, open_qp([](auto& o) { o.qp_type = IBV_QPT_RC; })},
      {"open_qp: no such number", EINVAL, open_qp([](auto& o) { o.qp_num ^= 0x8000; })},
      {"open_qp: number of an RC one", EINVAL,
       open_qp([this](auto& o) { o.qp_num = a_.qp->qp_num; })},
      {"open_qp: domain null", EINVAL, open_qp([](auto& o) { o.xrcd = nullptr; })},
      {"open_qp: another domain", EINVAL, open_qp([&](auto& o) { o.xrcd = domain.get(); })},
      {"open_qp: foreign domain", EINVAL,
       open_qp([this](auto& o) { o.xrcd = foreign_xrcd_.get(); })},
  });
  close(file);
}

TEST_F(BadObjects, CreatingQueuePairs) {
  const auto create = [&](auto change) {
    return [&, change] {
      ibv_qp_init_attr init = rc_attributes(cq_.get(), cq_.get());
      change(init);
      return code_of(ibv_create_qp(a_.pd.get(), &init));
    };
  };
  const auto of_type = [&](int type) {
    return create([type](auto& i) { i.qp_type = no_such<ibv_qp_type>(type); });
  };
  const auto create_ex = [&](auto change) {
    return [&, change] {
      ibv_qp_init_attr_ex init{};
      init.qp_type = IBV_QPT_RC;
      init.send_cq = init.recv_cq = cq_.get();
      init.cap = {1, 1, 1, 1, 0};
      init.pd = a_.pd.get();
      // With a PD alone the inline calls ibv_create_qp.
      init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
      change(init);
      return code_of(ibv_create_qp_ex(context_.get(), &init));
    };
  };
  const auto with_operations = [&](ibv_qp_type type, uint64_t operations) {
    return create_ex([=](auto& i) {
      i.qp_type = type;
      i.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      i.send_ops_flags = operations;
    });
  };
  const auto xrc_receive = [&](auto change) {
    return create_ex([=, this](auto& i) {
      i.qp_type = IBV_QPT_XRC_RECV;
      i.comp_mask = IBV_QP_INIT_ATTR_XRCD;
      i.xrcd = xrcd_.get();
      change(i);
    });
  };
  const auto wr = static_cast<uint32_t>(limits_.max_qp_wr) + 1;
  const auto sge = static_cast<uint32_t>(limits_.max_sge) + 1;
  run({
      {"create_qp: max_send_wr", EINVAL, create([=](auto& i) { i.cap.max_send_wr = wr; })},
      {"create_qp: max_recv_wr", EINVAL, create([=](auto& i) { i.cap.max_recv_wr = wr; })},
      {"create_qp: max_send_sge", EINVAL, create([=](auto& i) { i.cap.max_send_sge = sge; })},
      {"create_qp: max_recv_sge", EINVAL, create([=](auto& i) { i.cap.max_recv_sge = sge; })},
      {"create_qp: max_inline_data", EINVAL,
       create([](auto& i) { i.cap.max_inline_data = UINT32_MAX; })},
      {"create_qp: send_cq null", EINVAL, create([](auto& i) { i.send_cq = nullptr; })},
      {"create_qp: recv_cq null", EINVAL, create([](auto& i) { i.recv_cq = nullptr; })},
      {"create_qp: foreign send_cq", EINVAL,
       create([this](auto& i) { i.send_cq = foreign_cq_.get(); })},
      {"create_qp: foreign recv_cq", EINVAL,
       create([this](auto& i) { i.recv_cq = foreign_cq_.get(); })},
      {"create_qp: foreign srq", EINVAL, create([this](auto& i) { i.srq = foreign_srq_.get(); })},
      {"create_qp: XRC srq", EINVAL, create([this](auto& i) { i.srq = xrc_srq_.get(); })},
      {"create_qp: UC on an srq", EINVAL, create([this](auto& i) {
         i.qp_type = IBV_QPT_UC;
         i.srq = srq_.get();
       })},
      {"create_qp: type 0", EINVAL, of_type(0)},
      {"create_qp: type 77", EINVAL, of_type(77)},
      {"create_qp: XRC receive", EINVAL, of_type(IBV_QPT_XRC_RECV)},
      {"create_qp: raw packets", EOPNOTSUPP, of_type(IBV_QPT_RAW_PACKET)},
      {"create_qp: a driver's", EOPNOTSUPP, of_type(IBV_QPT_DRIVER)},
      {"create_qp_ex: comp_mask", EINVAL, create_ex([](auto& i) { i.comp_mask |= kNoSuchBit; })},
      {"create_qp_ex: no pd", EINVAL, create_ex([](auto& i) { i.comp_mask = 0; })},
      {"create_qp_ex: pd null", EINVAL, create_ex([](auto& i) { i.pd = nullptr; })},
      {"create_qp_ex: foreign pd", EINVAL,
       create_ex([this](auto& i) { i.pd = foreign_pd_.get(); })},
      {"create_qp_ex: creation flag", EOPNOTSUPP,
       create_ex([](auto& i) { i.create_flags = IBV_QP_CREATE_SOURCE_QPN; })},
      {"create_qp_ex: TSO", EOPNOTSUPP, create_ex([](auto& i) {
         i.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
         i.max_tso_header = 64;
       })},
      {"create_qp_ex: receive hashing", EOPNOTSUPP,
       create_ex([](auto& i) { i.comp_mask |= IBV_QP_INIT_ATTR_RX_HASH; })},
      {"create_qp_ex: indirection table", EOPNOTSUPP,
       create_ex([](auto& i) { i.comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE; })},
      {"create_qp_ex: an unknown operation", EOPNOTSUPP,
       with_operations(IBV_QPT_RC, uint64_t{1} << 50)},
      {"create_qp_ex: TSO operation", EOPNOTSUPP, with_operations(IBV_QPT_UD, IBV_QP_EX_WITH_TSO)},
      {"create_qp_ex: UD READ", EOPNOTSUPP, with_operations(IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_READ)},
      {"create_qp_ex: UC atomic", EOPNOTSUPP,
       with_operations(IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)},
      {"create_qp_ex: XRC receive without domain", EINVAL,
       xrc_receive([](auto& i) { i.comp_mask = IBV_QP_INIT_ATTR_PD; })},
      {"create_qp_ex: XRC receive, domain null", EINVAL,
       xrc_receive([](auto& i) { i.xrcd = nullptr; })},
      {"create_qp_ex: XRC receive, foreign domain", EINVAL,
       xrc_receive([this](auto& i) { i.xrcd = foreign_xrcd_.get(); })},
      {"create_qp_ex: XRC receive, operations", EINVAL,
       xrc_receive([](auto& i) { i.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS; })},
  });
}

constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

TEST_F(BadObjects, ModifyingQueuePairs) {
  const auto modify = [](ibv_qp* qp, int mask, const ibv_qp_attr& attr) {
    ibv_qp_attr copy = attr;
    return ibv_modify_qp(qp, &copy, mask);
  };
  const auto to_init_with = [&](auto change, int mask = kInit) {
    return [=, this] {
      ibv_qp_attr attr{};
      attr.qp_state = IBV_QPS_INIT;
      attr.port_num = 1;
      change(attr);
      return modify(fresh_.get(), mask, attr);
    };
  };
  const auto to_rtr_with = [&](auto change, int mask = kRtr) {
    return [=, this] {
      ibv_qp_attr attr{};
      attr.qp_state = IBV_QPS_RTR;
      attr.path_mtu = IBV_MTU_1024;
      attr.ah_attr = address();
      change(attr);
      return modify(init_.get(), mask, attr);
    };
  };
  const auto to_rts_with = [&](auto change, int mask = kRts) {
    return [=, this] {
      ibv_qp_attr attr{};
      attr.qp_state = IBV_QPS_RTS;
      change(attr);
      return modify(rtr_.get(), mask, attr);
    };
  };
  const auto in_rts = [&](int mask, auto change) {
    return [=, this] {
      ibv_qp_attr attr{};
      attr.qp_state = IBV_QPS_RTS;
      change(attr);
      return modify(a_.qp.get(), mask, attr);
    };
  };
  const auto nothing = [](auto&) {};
  const auto to_state = [&](ibv_qp* qp, int state, int mask = IBV_QP_STATE) {
    return [=] {
      ibv_qp_attr attr{};
      attr.qp_state = no_such<ibv_qp_state>(state);
      return modify(qp, mask, attr);
    };
  };
  const auto too_many_reads = static_cast<uint8_t>(limits_.max_qp_rd_atom + 1);
  run({
      {"to INIT: port 0", EINVAL, to_init_with([](auto& a) { a.port_num = 0; })},
      {"to INIT: port 2", EINVAL, to_init_with([](auto& a) { a.port_num = 2; })},
      {"to INIT: pkey_index 1", EINVAL, to_init_with([](auto& a) { a.pkey_index = 1; })},
      {"to INIT: port missing", EINVAL, to_init_with(nothing, kInit & ~IBV_QP_PORT)},
      {"to INIT: qkey, of RC", EINVAL, to_init_with(nothing, kInit | IBV_QP_QKEY)},
      {"to INIT: unknown attribute", EINVAL, to_init_with(nothing, kInit | 1 << 30)},
      {"to INIT: cur_qp_state wrong", EINVAL,
       to_init_with([](auto& a) { a.cur_qp_state = IBV_QPS_RTS; }, kInit | IBV_QP_CUR_STATE)},
      {"to RTR: path_mtu 0", EINVAL,
       to_rtr_with([](auto& a) { a.path_mtu = no_such<ibv_mtu>(0); })},
      {"to RTR: path_mtu 6", EINVAL,
       to_rtr_with([](auto& a) { a.path_mtu = no_such<ibv_mtu>(6); })},
      {"to RTR: no GRH", EINVAL, to_rtr_with([](auto& a) { a.ah_attr.is_global = 0; })},
      {"to RTR: address of port 2", EINVAL, to_rtr_with([](auto& a) { a.ah_attr.port_num = 2; })},
      {"to RTR: sgid_index", EINVAL, to_rtr_with([](auto& a) { a.ah_attr.grh.sgid_index = 255; })},
      {"to RTR: no destination", EINVAL, to_rtr_with([](auto& a) { a.ah_attr.grh.dgid = {}; })},
      {"to RTR: to a group", EINVAL,
       to_rtr_with([](auto& a) { a.ah_attr.grh.dgid.raw[12] = 239; })},
      {"to RTR: max_dest_rd_atomic", EINVAL,
       to_rtr_with([=](auto& a) { a.max_dest_rd_atomic = too_many_reads; })},
      {"to RTR: min_rnr_timer", EINVAL, to_rtr_with([](auto& a) { a.min_rnr_timer = 32; })},
      {"to RTR: alternate path", EINVAL, to_rtr_with(nothing, kRtr | IBV_QP_ALT_PATH)},
      {"to RTR: rq_psn missing", EINVAL, to_rtr_with(nothing, kRtr & ~IBV_QP_RQ_PSN)},
      {"to RTS: timeout", EINVAL, to_rts_with([](auto& a) { a.timeout = 32; })},
      {"to RTS: retry_cnt", EINVAL, to_rts_with([](auto& a) { a.retry_cnt = 8; })},
      {"to RTS: rnr_retry", EINVAL, to_rts_with([](auto& a) { a.rnr_retry = 8; })},
      {"to RTS: max_rd_atomic", EINVAL,
       to_rts_with([=](auto& a) { a.max_rd_atomic = too_many_reads; })},
      {"to RTS: sq_psn missing", EINVAL, to_rts_with(nothing, kRts & ~IBV_QP_SQ_PSN)},
      {"in RTS: port", EINVAL, in_rts(IBV_QP_STATE | IBV_QP_PORT, [](auto& a) { a.port_num = 1; })},
      {"in RTS: path_mig_state", EINVAL,
       in_rts(IBV_QP_PATH_MIG_STATE, [](auto& a) { a.path_mig_state = IBV_MIG_ARMED; })},
      {"in RTS: rate_limit too low", EINVAL,
       in_rts(IBV_QP_RATE_LIMIT, [](auto& a) { a.rate_limit = 1; })},
      {"in RTS: rate_limit too high", EINVAL,
       in_rts(IBV_QP_RATE_LIMIT, [](auto& a) { a.rate_limit = UINT32_MAX; })},
      {"in RTS: another size", EINVAL, in_rts(IBV_QP_CAP, [](auto& a) { a.cap.max_send_wr = 1; })},
      {"RTS to INIT", EINVAL, to_state(a_.qp.get(), IBV_QPS_INIT, kInit)},
      {"RTS to RTR", EINVAL, to_state(a_.qp.get(), IBV_QPS_RTR, kRtr)},
      {"RTS to SQE", EINVAL, to_state(a_.qp.get(), IBV_QPS_SQE)},
      {"RTS to no state", EINVAL, to_state(a_.qp.get(), 7)},
      {"RTS to state 256", EINVAL, to_state(a_.qp.get(), 256)},
      {"RTS to state -1", EINVAL, to_state(a_.qp.get(), -1)},
      {"RTS to RESET, with more", EINVAL,
       to_state(a_.qp.get(), IBV_QPS_RESET, IBV_QP_STATE | IBV_QP_PORT)},
      {"RTS to ERR, with more", EINVAL,
       to_state(a_.qp.get(), IBV_QPS_ERR, IBV_QP_STATE | IBV_QP_PORT)},
      {"RESET to RTS", EINVAL, to_state(fresh_.get(), IBV_QPS_RTS, kRts)},
      {"UC to INIT, attributes missing", EINVAL, to_state(uc_.get(), IBV_QPS_INIT, IBV_QP_STATE)},
  });
}

TEST_F(BadObjects, RatesAndEce) {
  const auto limit = [&](ibv_qp* qp, ibv_qp_rate_limit_attr attr) {
    return [=]() mutable { return ibv_modify_qp_rate_limit(qp, &attr); };
  };
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &device), 0);
  const auto& pacing = device.packet_pacing_caps;
  ibv_qp* const qp = a_.qp.get();
  ibv_ece masked{0, 0, kNoSuchBit};
  ibv_ece optional{0, 1, 0};
  run({
      {"rate_limit: below the least", EINVAL, limit(qp, {pacing.qp_rate_limit_min - 1, 0, 0, 0})},
      {"rate_limit: beyond the most", EINVAL, limit(qp, {pacing.qp_rate_limit_max + 1, 0, 0, 0})},
      {"rate_limit: burst alone", EINVAL, limit(qp, {0, 1000, 0, 0})},
      {"rate_limit: packet size alone", EINVAL, limit(qp, {0, 0, 1000, 0})},
      {"rate_limit: comp_mask", EINVAL, limit(qp, {1000, 0, 0, kNoSuchBit})},
      {"rate_limit: in RESET", EINVAL, limit(fresh_.get(), {1000, 0, 0, 0})},
      {"rate_limit: XRC receive", EINVAL, limit(xrc_receive_.get(), {1000, 0, 0, 0})},
      {"set_ece: comp_mask", EINVAL, [&] { return ibv_set_ece(qp, &masked); }},
      {"set_ece: options", EINVAL, [&] { return ibv_set_ece(qp, &optional); }},
  });
}

TEST_F(BadObjects, WhatIsNotThere) {
  ibv_context* const c = context_.get();
  ibv_counters_init_attr none{};
  ibv_counters_init_attr masked{kNoSuchBit};
  ibv_counters* const counters = ibv_create_counters(c, &none);
  ASSERT_NE(counters, nullptr);
  ibv_counter_attach_attr attach{};
  uint64_t value = 0;
  ibv_wq_init_attr wq{};
  ibv_rwq_ind_table_init_attr table{};
  ibv_flow_attr flow{};
  ibv_flow_action_esp_attr esp{};
  run({
      {"create_counters: comp_mask", EINVAL,
       [&] { return code_of(ibv_create_counters(c, &masked)); }},
      {"attach_counters", EOPNOTSUPP,
       [&] { return ibv_attach_counters_point_flow(counters, &attach, nullptr); }},
      {"read_counters: flag", EINVAL,
       [&] { return ibv_read_counters(counters, &value, 0, kNoSuchBit); }},
      {"read_counters: none attached", EINVAL,
       [&] { return ibv_read_counters(counters, &value, 1, 0); }},
      {"create_wq", EOPNOTSUPP, [&] { return code_of(ibv_create_wq(c, &wq)); }, false},
      {"create_rwq_ind_table", EOPNOTSUPP,
       [&] { return code_of(ibv_create_rwq_ind_table(c, &table)); }, false},
      {"create_flow", EOPNOTSUPP, [&] { return code_of(ibv_create_flow(ud_.get(), &flow)); },
       false},
      {"create_flow_action_esp", EOPNOTSUPP,
       [&] { return code_of(ibv_create_flow_action_esp(c, &esp)); }, false},
  });
  EXPECT_EQ(ibv_destroy_counters(counters), 0);
}

}  // namespace
}  // namespace verbena::test
