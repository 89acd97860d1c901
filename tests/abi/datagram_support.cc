// UD queue pairs for tests.
#include "tests/abi/datagram_support.h"

namespace verbena::test {

ibv_qp_init_attr datagram_attributes(const Side& side) {
  ibv_qp_init_attr init = rc_attributes(side.cq.get(), side.receive_cq.get());
  init.qp_type = IBV_QPT_UD;
  return init;
}

int datagram_to_rts(ibv_qp* qp, uint32_t qkey) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qkey = qkey;
  int code = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  attr.qp_state = IBV_QPS_RTR;
  if (code == 0) code = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
  attr.qp_state = IBV_QPS_RTS;
  if (code == 0) code = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
  return code;
}

void DatagramTest::SetUp() {
  context_ = open_loopback();
  ASSERT_NE(context_, nullptr);
  for (Side* side : {&a_, &b_}) {
    make_side(*side);
    side->qp = make_ud(*side);
    ASSERT_NE(side->qp, nullptr);
  }
}

QpPtr DatagramTest::make_ud(Side& side) {
  ibv_qp_init_attr init = datagram_attributes(side);
  QpPtr qp(ibv_create_qp(side.pd.get(), &init));
  if (qp != nullptr) {
    EXPECT_EQ(datagram_to_rts(qp.get()), 0);
  }
  return qp;
}

ibv_ah_attr DatagramTest::address(int gid_index) {
  ibv_ah_attr attr{};
  attr.is_global = 1;
  attr.port_num = 1;
  attr.grh.sgid_index = static_cast<uint8_t>(gid_index);
  attr.grh.hop_limit = 9;
  attr.grh.traffic_class = 0x20;
  EXPECT_EQ(ibv_query_gid(context_.get(), 1, gid_index, &attr.grh.dgid), 0);
  return attr;
}

ibv_send_wr DatagramTest::datagram(ibv_sge* sge, ibv_ah* ah, uint32_t qpn) {
  ibv_send_wr wr{};
  wr.wr_id = 5;
  wr.sg_list = sge;
  wr.num_sge = sge != nullptr ? 1 : 0;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = qpn;
  wr.wr.ud.remote_qkey = kQkey;
  return wr;
}

}  // namespace verbena::test
