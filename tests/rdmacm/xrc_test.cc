// XRC: one side has a receive queue pair and a shared receive queue, the other a send queue pair.
#include <endian.h>

#include <cstring>
#include <thread>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

rdma_cm_id* xrc_endpoint(uint16_t port, int flags, ibv_qp_type type, ibv_qp_init_attr* attr) {
  rdma_addrinfo hints{};
  hints.ai_flags = flags | RAI_NUMERICHOST;
  hints.ai_port_space = RDMA_PS_IB;
  hints.ai_qp_type = type;
  rdma_addrinfo* info = nullptr;
  EXPECT_EQ(rdma_getaddrinfo("127.0.0.1", std::to_string(port).c_str(), &hints, &info), 0);
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_ep(&id, info, nullptr, attr), 0) << strerror(errno);
  rdma_freeaddrinfo(info);
  return id;
}

TEST(Xrc, AMessageReachesTheSharedReceiveQueue) {
  ibv_qp_init_attr none{};
  rdma_cm_id* listener = xrc_endpoint(0, RAI_PASSIVE, IBV_QPT_XRC_RECV, &none);
  ASSERT_NE(listener, nullptr);
  // The listener is on loopback and has no device, so the queue belongs to another identifier.
  rdma_cm_id* owner = xrc_endpoint(source_port(listener), 0, IBV_QPT_XRC_RECV, nullptr);
  ASSERT_NE(owner, nullptr);
  ibv_srq_init_attr srq{};
  srq.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
  ASSERT_EQ(rdma_create_srq(owner, nullptr, &srq), 0) << strerror(errno);
  uint32_t number = 0;
  ASSERT_EQ(ibv_get_srq_num(owner->srq, &number), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  const uint16_t port = source_port(listener);

  std::thread server([&] {
    char word[16] = "";
    ibv_mr* mr = rdma_reg_msgs(owner, word, sizeof word);
    ASSERT_EQ(rdma_post_recv(owner, nullptr, word, sizeof word, mr), 0);
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener, &id), 0) << strerror(errno);
    EXPECT_EQ(id->qp_type, IBV_QPT_XRC_RECV);
    const uint32_t srq_number = htobe32(number);
    rdma_conn_param param{};
    param.private_data = &srq_number;
    param.private_data_len = sizeof srq_number;
    param.responder_resources = param.initiator_depth = 2;
    ASSERT_EQ(rdma_accept(id, &param), 0) << strerror(errno);
    ibv_wc wc{};
    ASSERT_EQ(rdma_get_recv_comp(owner, &wc), 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_STREQ(word, "by XRC");
    EXPECT_EQ(rdma_disconnect(id), 0);
    rdma_destroy_ep(id);
    rdma_dereg_mr(mr);
  });

  ibv_qp_init_attr attr{};
  attr.cap.max_send_wr = attr.cap.max_send_sge = 1;
  attr.cap.max_inline_data = 16;
  attr.sq_sig_all = 1;
  rdma_cm_id* client = xrc_endpoint(port, 0, IBV_QPT_XRC_SEND, &attr);
  ASSERT_NE(client, nullptr);
  ASSERT_EQ(rdma_connect(client, nullptr), 0) << strerror(errno);
  ASSERT_GE(client->event->param.conn.private_data_len, sizeof number);
  uint32_t srq_number = 0;
  std::memcpy(&srq_number, client->event->param.conn.private_data, sizeof srq_number);
  EXPECT_EQ(be32toh(srq_number), number);
  char word[16] = "by XRC";
  ibv_sge sge{reinterpret_cast<uint64_t>(word), sizeof word, 0};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_INLINE;
  wr.qp_type.xrc.remote_srqn = be32toh(srq_number);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(client->qp, &wr, &bad), 0);
  ibv_wc wc{};
  ASSERT_EQ(rdma_get_send_comp(client, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(rdma_disconnect(client), 0);
  server.join();
  rdma_destroy_ep(client);
  rdma_destroy_ep(owner);
  rdma_destroy_ep(listener);
}

// A listener for one type of queue pair gets no requests for another type.
TEST(Xrc, RejectsAnotherTransport) {
  ibv_qp_init_attr none{};
  rdma_cm_id* listener = xrc_endpoint(0, RAI_PASSIVE, IBV_QPT_XRC_RECV, &none);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  ChannelPtr channel = make_channel();
  ASSERT_EQ(rdma_migrate_id(listener, channel.get()), 0);
  ChannelPtr clients = make_channel();
  const IdPtr client = resolve(clients.get(), "127.0.0.1", source_port(listener), RDMA_PS_IB);
  rdma_conn_param param = connect_parameters();
  param.qp_num = 77;
  ASSERT_EQ(rdma_connect(client.get(), &param), 0);
  std::thread taker([&] {
    rdma_cm_event* event = nullptr;
    ASSERT_EQ(rdma_get_cm_event(channel.get(), &event), 0);
    EXPECT_STREQ(rdma_event_str(event->event), "RDMA_CM_EVENT_ADDR_RESOLVED");  // see below
    rdma_ack_cm_event(event);
  });
  expect_event(clients.get(), RDMA_CM_EVENT_REJECTED, 28);
  const IdPtr last = make_id(channel.get());  // so that the thread gets an event
  Address to = ip("127.0.0.1", 1);
  ASSERT_EQ(rdma_resolve_addr(last.get(), nullptr, to.get(), 1000), 0);
  taker.join();
  rdma_destroy_ep(listener);
}

}  // namespace
}  // namespace verbena::test
