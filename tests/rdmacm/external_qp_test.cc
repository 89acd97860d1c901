// Queue pairs that the program creates itself: it queries the attributes of each state and reports
// when it is ready. Also the exchange of vendor options (ECE).
#include <cstring>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

struct OwnQueues {
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;

  void make(rdma_cm_id* id, ibv_qp_type type = IBV_QPT_RC) {
    cq = ibv_create_cq(id->verbs, 32, nullptr, nullptr, 0);
    ibv_qp_init_attr attr = qp_attributes(type);
    attr.send_cq = attr.recv_cq = cq;
    qp = ibv_create_qp(id->pd, &attr);
    ASSERT_NE(qp, nullptr);
  }
  ~OwnQueues() {
    if (qp == nullptr) return;
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
  }
};

int change(rdma_cm_id* id, ibv_qp* qp, ibv_qp_state state) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  int mask = 0;
  if (rdma_init_qp_attr(id, &attr, &mask) != 0) return errno;
  EXPECT_NE(mask & IBV_QP_STATE, 0);
  return ibv_modify_qp(qp, &attr, mask);
}

void make_ready(rdma_cm_id* id, ibv_qp* qp) {
  EXPECT_EQ(change(id, qp, IBV_QPS_INIT), 0);
  EXPECT_EQ(change(id, qp, IBV_QPS_RTR), 0);
  EXPECT_EQ(change(id, qp, IBV_QPS_RTS), 0);
}

void transfer(rdma_cm_id* from, const OwnQueues& sender, rdma_cm_id* to,
              const OwnQueues& receiver) {
  char sent[32] = "external queue pairs";
  char received[32] = "";
  ibv_mr* out = ibv_reg_mr(from->pd, sent, sizeof sent, 0);
  ibv_mr* in = ibv_reg_mr(to->pd, received, sizeof received, IBV_ACCESS_LOCAL_WRITE);
  ibv_sge in_sge{reinterpret_cast<uint64_t>(received), sizeof received, in->lkey};
  ibv_recv_wr receive{};
  receive.sg_list = &in_sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(ibv_post_recv(receiver.qp, &receive, &bad_receive), 0);
  ibv_sge out_sge{reinterpret_cast<uint64_t>(sent), sizeof sent, out->lkey};
  ibv_send_wr send{};
  send.sg_list = &out_sge;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  ibv_send_wr* bad_send = nullptr;
  ASSERT_EQ(ibv_post_send(sender.qp, &send, &bad_send), 0);
  ibv_wc wc{};
  EXPECT_TRUE(within_ms(10'000, [&] { return ibv_poll_cq(receiver.cq, 1, &wc) == 1; }));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_STREQ(received, sent);
  EXPECT_TRUE(within_ms(10'000, [&] { return ibv_poll_cq(sender.cq, 1, &wc) == 1; }));
  EXPECT_EQ(ibv_dereg_mr(out), 0);
  EXPECT_EQ(ibv_dereg_mr(in), 0);
}

class ExternalQueuePairs : public testing::Test {
 protected:
  // Connects with queue pairs of the program. `server_` gets the request.
  void request(rdma_conn_param* param) {
    if (client_ == nullptr) {
      client_ = resolve(pair_.client_channel.get(), "127.0.0.1", source_port(pair_.listener.get()));
    }
    client_queues_.make(client_.get());
    param->qp_num = client_queues_.qp->qp_num;
    ASSERT_EQ(rdma_connect(client_.get(), param), 0) << strerror(errno);
    EventPtr event = expect_event(pair_.server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
    ASSERT_NE(event, nullptr);
    EXPECT_EQ(event->param.conn.qp_num, client_queues_.qp->qp_num);
    server_.reset(event->id);
    server_queues_.make(server_.get());
  }

  // Accepts at the server and returns the client's event.
  EventPtr accept(const std::string& data = {}) {
    make_ready(server_.get(), server_queues_.qp);
    rdma_conn_param param = connect_parameters(data);
    param.qp_num = server_queues_.qp->qp_num;
    EXPECT_EQ(rdma_accept(server_.get(), &param), 0) << strerror(errno);
    return expect_event(pair_.client_channel.get(), RDMA_CM_EVENT_CONNECT_RESPONSE);
  }

  Pair pair_;
  // Destroyed after the queue pairs.
  IdPtr client_;
  IdPtr server_;
  OwnQueues client_queues_;
  OwnQueues server_queues_;
};

TEST_F(ExternalQueuePairs, ConnectAndTransferData) {
  rdma_conn_param param = connect_parameters();
  request(&param);
  EventPtr response = accept("welcome");
  ASSERT_NE(response, nullptr);
  EXPECT_EQ(response->param.conn.qp_num, server_queues_.qp->qp_num);
  EXPECT_EQ(data_of(response->param.conn), "welcome");
  make_ready(client_.get(), client_queues_.qp);
  ASSERT_EQ(rdma_establish(client_.get()), 0) << strerror(errno);
  EXPECT_ERRNO(rdma_establish(client_.get()), EINVAL);
  expect_event(pair_.server_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  transfer(client_.get(), client_queues_, server_.get(), server_queues_);
  transfer(server_.get(), server_queues_, client_.get(), client_queues_);
  ASSERT_EQ(rdma_disconnect(client_.get()), 0);
  pair_.expect_disconnected();
}

TEST_F(ExternalQueuePairs, CanRejectTheResponse) {
  rdma_conn_param param = connect_parameters();
  request(&param);
  accept();
  ASSERT_EQ(rdma_reject(client_.get(), "changed my mind", 15), 0);
  EventPtr rejected = expect_event(pair_.server_channel.get(), RDMA_CM_EVENT_REJECTED, 28);
  ASSERT_NE(rejected, nullptr);
  EXPECT_EQ(data_of(rejected->param.conn), "changed my mind");
}

TEST_F(ExternalQueuePairs, ReceivedDataEstablishesTheConnection) {
  rdma_conn_param param = connect_parameters();
  request(&param);
  accept();
  // The client is ready and sends data, but the RTU has not been received.
  make_ready(client_.get(), client_queues_.qp);
  transfer(client_.get(), client_queues_, server_.get(), server_queues_);
  EXPECT_ERRNO(rdma_notify(server_.get(), IBV_EVENT_PATH_MIG), EINVAL);
  ASSERT_EQ(rdma_notify(server_.get(), IBV_EVENT_COMM_EST), 0) << strerror(errno);
  expect_event(pair_.server_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  ASSERT_EQ(rdma_establish(client_.get()), 0);
  EXPECT_FALSE(event_within_ms(pair_.server_channel.get(), 50));  // the event is reported once
}

TEST_F(ExternalQueuePairs, InitQpAttrReturnsTheKnownAttributes) {
  client_ = resolve(pair_.client_channel.get(), "127.0.0.1", source_port(pair_.listener.get()));
  ibv_qp_attr attr{};
  int mask = 0;
  attr.qp_state = IBV_QPS_INIT;
  ASSERT_EQ(rdma_init_qp_attr(client_.get(), &attr, &mask), 0);
  EXPECT_EQ(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  EXPECT_EQ(attr.qp_access_flags, 0u);
  EXPECT_EQ(attr.port_num, 1);
  rdma_conn_param param = connect_parameters();
  request(&param);
  attr.qp_state = IBV_QPS_INIT;
  ASSERT_EQ(rdma_init_qp_attr(client_.get(), &attr, &mask), 0);
  EXPECT_EQ(attr.qp_access_flags,
            unsigned{IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC});
  attr.qp_state = IBV_QPS_RTR;  // the peer has not responded
  EXPECT_ERRNO(rdma_init_qp_attr(client_.get(), &attr, &mask), EINVAL);
  attr.qp_state = IBV_QPS_SQD;
  EXPECT_ERRNO(rdma_init_qp_attr(client_.get(), &attr, &mask), EINVAL);

  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  ASSERT_EQ(rdma_init_qp_attr(server_.get(), &attr, &mask), 0);
  EXPECT_EQ(mask, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  EXPECT_EQ(attr.dest_qp_num, client_queues_.qp->qp_num);
  EXPECT_EQ(attr.ah_attr.is_global, 1);
  EXPECT_EQ(attr.max_dest_rd_atomic, 4);
}

TEST(ExternalDatagramQueuePair, InitQpAttrReturnsTheQkey) {
  ChannelPtr channel = make_channel();
  const IdPtr id = resolve(channel.get(), "127.0.0.1", 9, RDMA_PS_UDP);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  int mask = 0;
  ASSERT_EQ(rdma_init_qp_attr(id.get(), &attr, &mask), 0);
  EXPECT_EQ(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  EXPECT_EQ(attr.qkey, uint32_t{RDMA_UDP_QKEY});
  OwnQueues queues;
  queues.make(id.get(), IBV_QPT_UD);
  EXPECT_EQ(ibv_modify_qp(queues.qp, &attr, mask), 0);
}

// --------------------------------------------------------------------------------- vendors'
// options

TEST_F(ExternalQueuePairs, ExchangeVendorOptions) {
  client_ = resolve(pair_.client_channel.get(), "127.0.0.1", source_port(pair_.listener.get()));
  ibv_ece offered{.vendor_id = 0xABCDEF, .options = 0x12345678, .comp_mask = 0};
  ASSERT_EQ(rdma_set_local_ece(client_.get(), &offered), 0);
  rdma_conn_param param = connect_parameters();
  request(&param);
  ibv_ece seen{};
  ASSERT_EQ(rdma_get_remote_ece(server_.get(), &seen), 0);
  EXPECT_EQ(seen.vendor_id, 0xABCDEFu);
  EXPECT_EQ(seen.options, 0x12345678u);
  ibv_ece reply{.vendor_id = 0xABCDEF, .options = 0x00000078, .comp_mask = 0};
  ASSERT_EQ(rdma_set_local_ece(server_.get(), &reply), 0);
  accept();
  ASSERT_EQ(rdma_get_remote_ece(client_.get(), &seen), 0);
  EXPECT_EQ(seen.vendor_id, 0xABCDEFu);
  EXPECT_EQ(seen.options, 0x00000078u);
}

TEST(VendorOptions, CannotBeSetForQueuePairsOfTheLibrary) {
  Pair pair;
  pair.request();
  ibv_ece ece{.vendor_id = 1, .options = 2, .comp_mask = 0};
  EXPECT_ERRNO(rdma_set_local_ece(pair.client.get(), &ece), EINVAL);
  EXPECT_ERRNO(rdma_get_remote_ece(pair.client.get(), &ece), EINVAL);
}

// Queue pairs of the library have no vendor options. They reply with none to a peer that offers
// some.
TEST_F(ExternalQueuePairs, AQueuePairOfTheLibraryRepliesWithoutVendorOptions) {
  client_ = resolve(pair_.client_channel.get(), "127.0.0.1", source_port(pair_.listener.get()));
  ibv_ece offered{.vendor_id = 0xABCDEF, .options = 0x12345678, .comp_mask = 0};
  ASSERT_EQ(rdma_set_local_ece(client_.get(), &offered), 0);
  rdma_conn_param param = connect_parameters();
  request(&param);
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(server_.get(), nullptr, &attr), 0);
  ASSERT_EQ(rdma_accept(server_.get(), nullptr), 0);
  expect_event(pair_.client_channel.get(), RDMA_CM_EVENT_CONNECT_RESPONSE);
  ibv_ece seen{};
  ASSERT_EQ(rdma_get_remote_ece(client_.get(), &seen), 0);
  EXPECT_EQ(seen.vendor_id, 0xABCDEFu);
  EXPECT_EQ(seen.options, 0u);
}

TEST(VendorOptions, AreNotOfferedByQueuePairsOfTheLibrary) {
  Pair pair;
  pair.client = resolve(pair.client_channel.get(), "127.0.0.1", source_port(pair.listener.get()));
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(pair.client.get(), nullptr, &attr), 0);
  ASSERT_EQ(rdma_connect(pair.client.get(), nullptr), 0);
  const EventPtr request = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(request, nullptr);
  pair.server.reset(request->id);
  ibv_ece offered{.vendor_id = 1, .options = 1, .comp_mask = 0};
  ASSERT_EQ(rdma_get_remote_ece(pair.server.get(), &offered), 0);
  EXPECT_EQ(offered.vendor_id, 0u);
  EXPECT_EQ(offered.options, 0u);
}

TEST(VendorOptions, RejectInvalidValues) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  ibv_ece ece{.vendor_id = 0, .options = 2, .comp_mask = 0};
  EXPECT_ERRNO(rdma_set_local_ece(id.get(), &ece), EINVAL);
  ece = {.vendor_id = 1, .options = 2, .comp_mask = 1};
  EXPECT_ERRNO(rdma_set_local_ece(id.get(), &ece), EINVAL);
  EXPECT_ERRNO(rdma_set_local_ece(nullptr, &ece), EINVAL);
  EXPECT_ERRNO(rdma_set_local_ece(id.get(), nullptr), EINVAL);
  EXPECT_ERRNO(rdma_get_remote_ece(id.get(), nullptr), EINVAL);
}

}  // namespace
}  // namespace verbena::test
