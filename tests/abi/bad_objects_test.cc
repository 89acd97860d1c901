// Calls for devices, completion queues, addresses and unsupported objects, each with one invalid
// argument.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "tests/abi/bad_input_support.h"

namespace verbena::test {
namespace {

using BadObjects = BadInputTest;

TEST_F(BadObjects, RejectsInvalidDeviceAndPortQueries) {
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

TEST_F(BadObjects, RejectsInvalidImports) {
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

TEST_F(BadObjects, RejectsInvalidCompletionQueueCalls) {
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

// Waits without polling until all posted requests are complete, then returns to RTS.
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

TEST_F(BadObjects, RejectsResizeBelowTheUnpolledCompletions) {
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

TEST_F(BadObjects, RejectsInvalidAddressHandlesAndGroups) {
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

TEST_F(BadObjects, RejectsUnsupportedObjects) {
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
