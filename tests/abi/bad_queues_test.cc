// Calls for queue pairs, shared receive queues and XRC domains, each with one invalid argument.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "tests/abi/bad_input_support.h"

namespace verbena::test {
namespace {

using BadQueues = BadInputTest;

TEST_F(BadQueues, RejectsInvalidSharedReceiveQueueCalls) {
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

TEST_F(BadQueues, RejectsInvalidXrcDomainCalls) {
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

TEST_F(BadQueues, RejectsInvalidQueuePairs) {
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
      // With only a PD the inline function calls ibv_create_qp.
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

TEST_F(BadQueues, RejectsInvalidTransitions) {
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

TEST_F(BadQueues, RejectsInvalidRateLimitsAndEce) {
  const auto limit = [&](ibv_qp* qp, ibv_qp_rate_limit_attr attr) {
    return [=]() mutable { return ibv_modify_qp_rate_limit(qp, &attr); };
  };
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &device), 0);
  const auto& pacing = device.packet_pacing_caps;
  ibv_qp* const qp = a_.qp.get();
  ibv_ece ece{0, 1, 0};
  run({
      {"rate_limit: below the least", EINVAL, limit(qp, {pacing.qp_rate_limit_min - 1, 0, 0, 0})},
      {"rate_limit: beyond the most", EINVAL, limit(qp, {pacing.qp_rate_limit_max + 1, 0, 0, 0})},
      {"rate_limit: burst without a rate", EINVAL, limit(qp, {0, 1000, 0, 0})},
      {"rate_limit: packet size without a rate", EINVAL, limit(qp, {0, 0, 1000, 0})},
      {"rate_limit: comp_mask", EINVAL, limit(qp, {1000, 0, 0, kNoSuchBit})},
      {"rate_limit: in RESET", EINVAL, limit(fresh_.get(), {1000, 0, 0, 0})},
      {"rate_limit: XRC receive", EINVAL, limit(xrc_receive_.get(), {1000, 0, 0, 0})},
      {"set_ece", EOPNOTSUPP, [&] { return ibv_set_ece(qp, &ece); }},
      {"query_ece", EOPNOTSUPP, [&] { return ibv_query_ece(qp, &ece); }},
  });
}

}  // namespace
}  // namespace verbena::test
