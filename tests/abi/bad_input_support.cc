// The objects of the tests with invalid calls, and the check that an invalid call changes none of
// them.
#include "tests/abi/bad_input_support.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

namespace verbena::test {
namespace {

// Size of the library's log file, or -1 if it does not log to a file.
off_t log_bytes() {
  const char* file = getenv("VERBENA_LOG_FILE");
  struct stat status {};
  return file != nullptr && stat(file, &status) == 0 ? status.st_size : -1;
}

template <typename T>
void append(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

QpPtr BadInputTest::make_qp(ibv_qp_type type, ibv_srq* srq) {
  ibv_qp_init_attr init = rc_attributes(cq_.get(), cq_.get());
  init.qp_type = type;
  init.srq = srq;
  return QpPtr(ibv_create_qp(a_.pd.get(), &init));
}

QpPtr BadInputTest::make_builder_qp(ibv_qp_type type, uint64_t operations) {
  ibv_qp_init_attr_ex init{};
  init.qp_type = type;
  init.send_cq = init.recv_cq = cq_.get();
  init.cap = {4, 4, 2, 2, 16};
  init.pd = a_.pd.get();
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.send_ops_flags = operations;
  QpPtr qp(ibv_create_qp_ex(context_.get(), &init));
  if (qp == nullptr) return qp;
  if (type == IBV_QPT_UD) {
    EXPECT_EQ(datagram_to_rts(qp.get()), 0);
  } else {
    EXPECT_EQ(to_init(qp.get()), 0);
    EXPECT_EQ(to_rtr(qp.get(), qp->qp_num), 0);
    EXPECT_EQ(to_rts(qp.get()), 0);
  }
  return qp;
}

ibv_ah_attr BadInputTest::address() {
  ibv_ah_attr attr{};
  attr.is_global = 1;
  attr.port_num = 1;
  EXPECT_EQ(ibv_query_gid(context_.get(), 1, 0, &attr.grh.dgid), 0);
  return attr;
}

void BadInputTest::SetUp() {
  LoopbackTest::SetUp();
  ASSERT_EQ(ibv_query_device(context_.get(), &limits_), 0);

  foreign_ = open_loopback();
  foreign_pd_.reset(ibv_alloc_pd(foreign_.get()));
  foreign_channel_.reset(ibv_create_comp_channel(foreign_.get()));
  foreign_cq_.reset(ibv_create_cq(foreign_.get(), 4, nullptr, nullptr, 0));
  ibv_srq_init_attr two{nullptr, {2, 1, 0}};
  foreign_srq_.reset(ibv_create_srq(foreign_pd_.get(), &two));
  ibv_xrcd_init_attr domain{IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, -1, 0};
  foreign_xrcd_.reset(ibv_open_xrcd(foreign_.get(), &domain));
  ibv_td_init_attr thread{};
  foreign_td_.reset(ibv_alloc_td(foreign_.get(), &thread));

  second_pd_.reset(ibv_alloc_pd(context_.get()));
  second_memory_.assign(4096, 0);
  second_mr_.reset(ibv_reg_mr(second_pd_.get(), second_memory_.data(), 4096, kAllAccess));
  read_only_.reset(ibv_reg_mr(b_.pd.get(), b_.memory.data(), 4096, 0));

  cq_.reset(ibv_create_cq(context_.get(), 64, nullptr, nullptr, 0));
  td_.reset(ibv_alloc_td(context_.get(), &thread));
  ibv_parent_domain_init_attr parent{};
  parent.pd = a_.pd.get();
  parent.td = td_.get();
  parent_.reset(ibv_alloc_parent_domain(context_.get(), &parent));
  ibv_cq_init_attr_ex ex{};
  ex.cqe = 4;
  cq_ex_.reset(ibv_create_cq_ex(context_.get(), &ex));

  srq_.reset(ibv_create_srq(a_.pd.get(), &two));
  ASSERT_NE(srq_, nullptr);
  ibv_sge sge = a_.sge(0, 64);
  for (uint64_t i = 0; i < 2; ++i) {
    ibv_recv_wr receive{i, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_srq_recv(srq_.get(), &receive, &bad), 0);
  }
  xrcd_.reset(ibv_open_xrcd(context_.get(), &domain));
  ibv_srq_init_attr_ex xrc{};
  xrc.attr = {2, 1, 0};
  xrc.srq_type = IBV_SRQT_XRC;
  xrc.pd = a_.pd.get();
  xrc.xrcd = xrcd_.get();
  xrc.cq = cq_.get();
  xrc.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  xrc_srq_.reset(ibv_create_srq_ex(context_.get(), &xrc));

  fresh_ = make_qp(IBV_QPT_RC);
  init_ = make_qp(IBV_QPT_RC);
  rtr_ = make_qp(IBV_QPT_RC);
  uc_ = make_qp(IBV_QPT_UC);
  ud_ = make_qp(IBV_QPT_UD);
  on_srq_ = make_qp(IBV_QPT_RC, srq_.get());
  xrc_send_ = make_qp(IBV_QPT_XRC_SEND);
  ibv_qp_init_attr_ex receive{};
  receive.qp_type = IBV_QPT_XRC_RECV;
  receive.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  receive.xrcd = xrcd_.get();
  xrc_receive_.reset(ibv_create_qp_ex(context_.get(), &receive));
  for (const QpPtr* qp :
       {&fresh_, &init_, &rtr_, &uc_, &ud_, &on_srq_, &xrc_send_, &xrc_receive_}) {
    ASSERT_NE(*qp, nullptr);
  }
  for (const QpPtr* qp : {&init_, &rtr_, &on_srq_}) ASSERT_EQ(to_init(qp->get()), 0);
  ASSERT_EQ(to_rtr(rtr_.get(), rtr_->qp_num), 0);
  ASSERT_EQ(datagram_to_rts(ud_.get()), 0);
  builder_ = make_builder_qp(IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_BIND_MW |
                                             IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                                             IBV_QP_EX_WITH_ATOMIC_WRITE);
  ud_builder_ = make_builder_qp(IBV_QPT_UD, IBV_QP_EX_WITH_SEND);

  ibv_alloc_dm_attr memory{4096, 0, 0};
  dm_.reset(ibv_alloc_dm(context_.get(), &memory));
  dm_mr_.reset(ibv_reg_dm_mr(a_.pd.get(), dm_.get(), 0, 4096, IBV_ACCESS_ZERO_BASED));
  window1_.reset(ibv_alloc_mw(a_.pd.get(), IBV_MW_TYPE_1));
  window2_.reset(ibv_alloc_mw(a_.pd.get(), IBV_MW_TYPE_2));
  ibv_ah_attr to = address();
  ah_.reset(ibv_create_ah(a_.pd.get(), &to));
  second_ah_.reset(ibv_create_ah(second_pd_.get(), &to));
  ASSERT_TRUE(foreign_td_ && second_mr_ && read_only_ && parent_ && cq_ex_ && xrc_srq_ &&
              builder_ && ud_builder_ && dm_mr_ && window1_ && window2_ && ah_ && second_ah_);
  // Sockets and the log are opened at the first use, which must not be in the middle of a table.
  ASSERT_NO_FATAL_FAILURE(expect_everything_works());
  EXPECT_EQ(ibv_create_cq(context_.get(), 0, nullptr, nullptr, 0), nullptr);
}

std::string BadInputTest::state_of_everything() {
  std::string all;
  for (const QpPtr* qp : {&a_.qp, &b_.qp, &fresh_, &init_, &rtr_, &uc_, &ud_, &on_srq_, &xrc_send_,
                          &xrc_receive_, &builder_, &ud_builder_}) {
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    std::memset(static_cast<void*>(&attr), 0, sizeof attr);
    std::memset(static_cast<void*>(&init), 0, sizeof init);
    EXPECT_EQ(ibv_query_qp(qp->get(), &attr, 0, &init), 0);
    append(all, attr);
    append(all, init);
    append(all, (*qp)->state);
  }
  for (const SrqPtr* srq : {&srq_, &xrc_srq_}) {
    ibv_srq_attr attr{};
    EXPECT_EQ(ibv_query_srq(srq->get(), &attr), 0);
    append(all, attr);
  }
  for (const CqPtr* cq : {&a_.cq, &a_.receive_cq, &cq_}) append(all, (*cq)->cqe);
  for (const MrPtr* mr : {&a_.mr, &b_.mr, &second_mr_, &read_only_, &dm_mr_}) append(all, **mr);
  for (const ibv_mw* mw : {window1_.get(), window2_.get()}) append(all, *mw);
  for (const std::string& descriptor : open_descriptors()) all += descriptor;
  return all;
}

void BadInputTest::expect_everything_works() {
  a_.memory[0] ^= 0x5A;
  ibv_sge sge = a_.sge(0, 1);
  ibv_send_wr write = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(write), 0);
  ASSERT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  ASSERT_EQ(b_.memory[0], a_.memory[0]);

  ibv_sge room = a_.sge(64, 64);
  ibv_recv_wr receive{1, nullptr, &room, 1};
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(ibv_post_recv(ud_.get(), &receive, &bad_receive), 0);
  ibv_qp_ex* builder = ibv_qp_to_qp_ex(ud_builder_.get());
  ibv_wr_start(builder);
  builder->wr_id = 2;
  builder->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(builder);
  ibv_wr_set_sge(builder, sge.lkey, sge.addr, sge.length);
  ibv_wr_set_ud_addr(builder, ah_.get(), ud_->qp_num, kQkey);
  ASSERT_EQ(ibv_wr_complete(builder), 0);
  for (int i = 0; i < 2; ++i) {  // the send and the receive
    ASSERT_EQ(wait_for_completion(cq_.get()).status, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(a_.memory[64 + kHeaderArea], a_.memory[0]);
}

void BadInputTest::run(std::initializer_list<InvalidCall> table) {
  for (const InvalidCall& row : table) {
    SCOPED_TRACE(row.name);
    const std::string before = state_of_everything();
    const off_t log_size = log_bytes();
    errno = 0;
    const int code = row.call();
    EXPECT_EQ(code, row.expected) << (code > 0 ? strerror(code) : "");
    if (log_size >= 0 && row.is_logged) {
      EXPECT_GT(log_bytes(), log_size) << "the log does not state the reason";
    }
    EXPECT_TRUE(state_of_everything() == before) << "the state of an object has changed";
    ASSERT_NO_FATAL_FAILURE(expect_everything_works());
  }
}

}  // namespace verbena::test
