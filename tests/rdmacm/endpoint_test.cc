// Synchronous identifiers and endpoints, with the inline functions of rdma_verbs.h.
#include <netdb.h>

#include <cstring>
#include <thread>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

struct FreeInfo {
  void operator()(rdma_addrinfo* info) const { rdma_freeaddrinfo(info); }
};
using InfoPtr = std::unique_ptr<rdma_addrinfo, FreeInfo>;

InfoPtr info_for(const char* node, const std::string& service, int flags, int space = RDMA_PS_TCP,
                 int type = IBV_QPT_RC) {
  rdma_addrinfo hints{};
  hints.ai_flags = flags | RAI_NUMERICHOST;
  hints.ai_port_space = space;
  hints.ai_qp_type = type;
  rdma_addrinfo* info = nullptr;
  EXPECT_EQ(rdma_getaddrinfo(node, service.c_str(), &hints, &info), 0);
  return InfoPtr(info);
}

struct DestroyEndpoint {
  void operator()(rdma_cm_id* id) const { rdma_destroy_ep(id); }
};
using EndpointPtr = std::unique_ptr<rdma_cm_id, DestroyEndpoint>;

EndpointPtr endpoint(const InfoPtr& info, ibv_qp_init_attr* attr, ibv_pd* pd = nullptr) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_ep(&id, info.get(), pd, attr), 0) << strerror(errno);
  return EndpointPtr(id);
}

class Endpoints : public testing::Test {
 protected:
  void SetUp() override {
    listener_ = endpoint(info_for("127.0.0.1", "0", RAI_PASSIVE), &server_attr_);
    ASSERT_NE(listener_, nullptr);
    ASSERT_EQ(rdma_listen(listener_.get(), 4), 0);
    service_ = std::to_string(source_port(listener_.get()));
  }

  ibv_qp_init_attr server_attr_ = qp_attributes();
  EndpointPtr listener_;
  std::string service_;
};

TEST_F(Endpoints, ConnectTransferAndDisconnect) {
  std::thread server([&] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener_.get(), &id), 0) << strerror(errno);
    const EndpointPtr peer(id);
    ASSERT_NE(id->qp, nullptr);
    ASSERT_NE(id->event, nullptr);
    EXPECT_EQ(id->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
    char word[16] = "";
    ibv_mr* mr = rdma_reg_msgs(id, word, sizeof word);
    ASSERT_EQ(rdma_post_recv(id, nullptr, word, sizeof word, mr), 0);
    ASSERT_EQ(rdma_accept(id, nullptr), 0) << strerror(errno);
    ibv_wc wc{};
    ASSERT_EQ(rdma_get_recv_comp(id, &wc), 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_STREQ(word, "hello");
    EXPECT_EQ(rdma_disconnect(id), 0);
    EXPECT_EQ(id->event->event, RDMA_CM_EVENT_DISCONNECTED);
    rdma_dereg_mr(mr);
  });
  ibv_qp_init_attr attr = qp_attributes();
  attr.cap.max_inline_data = 16;
  const EndpointPtr client = endpoint(info_for("127.0.0.1", service_, 0), &attr);
  ASSERT_NE(client, nullptr);
  EXPECT_NE(client->qp, nullptr);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0) << strerror(errno);
  EXPECT_EQ(client->event->event, RDMA_CM_EVENT_ESTABLISHED);
  char word[] = "hello";
  ASSERT_EQ(rdma_post_send(client.get(), nullptr, word, sizeof word, nullptr, IBV_SEND_INLINE), 0);
  ibv_wc wc{};
  ASSERT_EQ(rdma_get_send_comp(client.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(rdma_disconnect(client.get()), 0);
  server.join();
}

TEST_F(Endpoints, ReturnEconnrefusedWhenRejected) {
  std::thread server([&] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener_.get(), &id), 0);
    const EndpointPtr peer(id);
    EXPECT_EQ(rdma_reject(id, "sorry", 5), 0);
  });
  ibv_qp_init_attr attr = qp_attributes();
  const EndpointPtr client = endpoint(info_for("127.0.0.1", service_, 0), &attr);
  EXPECT_ERRNO(rdma_connect(client.get(), nullptr), ECONNREFUSED);
  ASSERT_NE(client->event, nullptr);
  EXPECT_EQ(client->event->status, 28);
  EXPECT_EQ(data_of(client->event->param.conn), "sorry");
  server.join();
  EXPECT_EQ(rdma_disconnect(client.get()), 0);  // does not wait for an event
}

TEST_F(Endpoints, ReturnEconnrefusedWithoutAListener) {
  ibv_qp_init_attr attr = qp_attributes();
  const EndpointPtr client = endpoint(info_for("127.0.0.1", "9", 0), &attr);
  EXPECT_ERRNO(rdma_connect(client.get(), nullptr), ECONNREFUSED);
}

TEST_F(Endpoints, SendPrivateDataOfTheAddressFirst) {
  InfoPtr info = info_for("127.0.0.1", service_, 0);
  info->ai_connect = strdup("abc");
  info->ai_connect_len = 3;
  std::string got;
  std::thread server([&] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener_.get(), &id), 0);
    const EndpointPtr peer(id);
    got = data_of(id->event->param.conn);
  });
  ibv_qp_init_attr attr = qp_attributes();
  const EndpointPtr client = endpoint(info, &attr);
  rdma_conn_param param = connect_parameters("def");
  EXPECT_ERRNO(rdma_connect(client.get(), &param), ECONNREFUSED);
  server.join();
  EXPECT_EQ(got, "abcdef");
}

TEST_F(Endpoints, RejectTheRequestIfTheQueuePairCannotBeCreated) {
  ibv_qp_init_attr impossible = qp_attributes();
  impossible.cap.max_send_sge = 100'000;
  const EndpointPtr listener = endpoint(info_for("127.0.0.1", "0", RAI_PASSIVE), &impossible);
  ASSERT_EQ(rdma_listen(listener.get(), 4), 0);
  std::thread server([&] {
    rdma_cm_id* id = nullptr;
    EXPECT_ERRNO(rdma_get_request(listener.get(), &id), EINVAL);
  });
  ibv_qp_init_attr attr = qp_attributes();
  const EndpointPtr client =
      endpoint(info_for("127.0.0.1", std::to_string(source_port(listener.get())), 0), &attr);
  EXPECT_ERRNO(rdma_connect(client.get(), nullptr), ECONNREFUSED);
  server.join();
}

TEST_F(Endpoints, UseAPdOfTheProgram) {
  const EndpointPtr on_device = endpoint(info_for("127.0.0.1", service_, 0), nullptr);
  ibv_pd* pd = ibv_alloc_pd(on_device->verbs);
  ASSERT_NE(pd, nullptr);
  {
    ibv_qp_init_attr attr = qp_attributes();
    const EndpointPtr client = endpoint(info_for("127.0.0.1", service_, 0), &attr, pd);
    EXPECT_EQ(client->pd, pd);
    EXPECT_EQ(client->qp->pd, pd);
  }
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Endpoints, CreateTheirOwnCompletionQueues) {
  ibv_qp_init_attr attr = qp_attributes();
  const EndpointPtr client = endpoint(info_for("127.0.0.1", service_, 0), &attr);
  EXPECT_NE(client->send_cq, nullptr);
  EXPECT_NE(client->recv_cq, nullptr);
  EXPECT_NE(client->send_cq, client->recv_cq);
  EXPECT_EQ(client->send_cq->channel, client->send_cq_channel);
  EXPECT_EQ(client->send_cq->cq_context, client.get());
  EXPECT_EQ(attr.send_cq, client->send_cq);
  rdma_destroy_qp(client.get());
  EXPECT_EQ(client->qp, nullptr);
  EXPECT_EQ(client->send_cq, nullptr);
  EXPECT_EQ(client->recv_cq_channel, nullptr);
}

TEST_F(Endpoints, UseCompletionQueuesOfTheProgram) {
  const EndpointPtr on_device = endpoint(info_for("127.0.0.1", service_, 0), nullptr);
  ibv_cq* cq = ibv_create_cq(on_device->verbs, 16, nullptr, nullptr, 0);
  {
    ibv_qp_init_attr attr = qp_attributes();
    attr.send_cq = attr.recv_cq = cq;
    const EndpointPtr client = endpoint(info_for("127.0.0.1", service_, 0), &attr);
    EXPECT_EQ(client->send_cq, nullptr);
    EXPECT_EQ(client->qp->send_cq, cq);
  }
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Endpoints, UseASharedReceiveQueue) {
  ibv_srq_init_attr srq{};
  srq.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
  const EndpointPtr client = endpoint(info_for("127.0.0.1", service_, 0), nullptr);
  ASSERT_EQ(rdma_create_srq(client.get(), nullptr, &srq), 0) << strerror(errno);
  ASSERT_NE(client->srq, nullptr);
  EXPECT_ERRNO(rdma_create_srq(client.get(), nullptr, &srq), EINVAL);
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(client.get(), nullptr, &attr), 0) << strerror(errno);
  EXPECT_EQ(client->qp->srq, client->srq);
  std::thread server([&] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener_.get(), &id), 0);
    const EndpointPtr peer(id);
    EXPECT_EQ(id->event->param.conn.srq, 1);
    ASSERT_EQ(rdma_accept(id, nullptr), 0);
    expect_data_flows(id, client.get());  // received through the shared queue
  });
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  server.join();
}

TEST_F(Endpoints, CreateQueuesByTheExtendedCalls) {
  const EndpointPtr client = endpoint(info_for("127.0.0.1", service_, 0), nullptr);
  ibv_srq_init_attr_ex srq{};
  srq.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
  EXPECT_ERRNO(rdma_create_srq_ex(client.get(), &srq), EINVAL);  // without a type
  srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
  srq.srq_type = IBV_SRQT_BASIC;
  ASSERT_EQ(rdma_create_srq_ex(client.get(), &srq), 0) << strerror(errno);
  ibv_qp_init_attr_ex attr{};
  attr.qp_type = IBV_QPT_RC;
  attr.cap = {.max_send_wr = 4,
              .max_recv_wr = 4,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  ASSERT_EQ(rdma_create_qp_ex(client.get(), &attr), 0) << strerror(errno);
  EXPECT_EQ(attr.pd, client->pd);
  EXPECT_EQ(state_of(client->qp), IBV_QPS_INIT);
  EXPECT_ERRNO(rdma_create_qp_ex(client.get(), &attr), EINVAL);  // it already has one
}

TEST(Synchronous, GetRequestNeedsASynchronousIdentifier) {
  ChannelPtr channel = make_channel();
  const IdPtr listener = listen_on(channel.get(), "127.0.0.1");
  rdma_cm_id* id = nullptr;
  EXPECT_ERRNO(rdma_get_request(listener.get(), &id), EINVAL);
}

TEST(Synchronous, ConnectsStepByStepWithoutAnEndpoint) {
  const IdPtr listener = make_id(nullptr);
  Address any = ip("127.0.0.1");
  ASSERT_EQ(rdma_bind_addr(listener.get(), any.get()), 0);
  ASSERT_EQ(rdma_listen(listener.get(), 1), 0);
  std::thread server([&] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener.get(), &id), 0);
    const IdPtr peer(id);
    ibv_qp_init_attr attr = qp_attributes();
    ASSERT_EQ(rdma_create_qp(id, nullptr, &attr), 0);
    EXPECT_EQ(rdma_accept(id, nullptr), 0);
    EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(rdma_disconnect(id), 0);
  });
  const IdPtr client = make_id(nullptr);
  Address to = ip("127.0.0.1", source_port(listener.get()));
  ASSERT_EQ(rdma_resolve_addr(client.get(), nullptr, to.get(), 1000), 0);
  ASSERT_EQ(rdma_resolve_route(client.get(), 1000), 0);
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(client.get(), nullptr, &attr), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  EXPECT_EQ(rdma_disconnect(client.get()), 0);
  server.join();
}

TEST(Synchronous, ReturnsTheErrorOfTheEvent) {
  const IdPtr id = make_id(nullptr);
  Address own = ip("127.0.0.1", 1);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, own.get(), 1000), 0);
  EXPECT_ERRNO(rdma_resolve_addr(id.get(), nullptr, own.get(), 1000), EINVAL);  // wrong state
}

}  // namespace
}  // namespace verbena::test
