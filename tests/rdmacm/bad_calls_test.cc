// Calls in the wrong order, on the wrong identifier, or with invalid arguments, each with its
// errno.
#include <cstring>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

TEST(BadCalls, RejectsAnUnknownPortSpace) {
  ChannelPtr channel = make_channel();
  rdma_cm_id* id = nullptr;
  const int number = 0x9999;
  rdma_port_space space;
  std::memcpy(&space, &number, sizeof space);
  EXPECT_ERRNO(rdma_create_id(channel.get(), &id, nullptr, space), EINVAL);
}

TEST(BadCalls, RejectsCallsOnANewIdentifier) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  ibv_qp_init_attr attr = qp_attributes();
  ibv_srq_init_attr srq{};
  ibv_qp_attr state{};
  int mask = 0;
  rdma_conn_param param = connect_parameters();
  EXPECT_ERRNO(rdma_resolve_route(id.get(), 1000), EINVAL);
  EXPECT_ERRNO(rdma_connect(id.get(), &param), EINVAL);
  EXPECT_ERRNO(rdma_accept(id.get(), &param), EINVAL);
  EXPECT_ERRNO(rdma_reject(id.get(), nullptr, 0), EINVAL);
  EXPECT_ERRNO(rdma_establish(id.get()), EINVAL);
  EXPECT_ERRNO(rdma_disconnect(id.get()), EINVAL);
  EXPECT_ERRNO(rdma_notify(id.get(), IBV_EVENT_COMM_EST), EINVAL);
  EXPECT_ERRNO(rdma_create_qp(id.get(), nullptr, &attr), EINVAL);
  EXPECT_ERRNO(rdma_create_srq(id.get(), nullptr, &srq), EINVAL);
  EXPECT_ERRNO(rdma_init_qp_attr(id.get(), &state, &mask), EINVAL);
  rdma_destroy_qp(id.get());  // has no effect
}

TEST(BadCalls, RejectsCallsOnABoundIdentifier) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  Address at = ip("127.0.0.1");
  ASSERT_EQ(rdma_bind_addr(id.get(), at.get()), 0);
  EXPECT_ERRNO(rdma_bind_addr(id.get(), at.get()), EINVAL);
  EXPECT_ERRNO(rdma_resolve_route(id.get(), 1000), EINVAL);
  EXPECT_ERRNO(rdma_connect(id.get(), nullptr), EINVAL);
}

TEST(BadCalls, RejectsCallsOnAListener) {
  ChannelPtr channel = make_channel();
  const IdPtr id = listen_on(channel.get(), "127.0.0.1");
  Address to = ip("127.0.0.1", 1);
  EXPECT_ERRNO(rdma_listen(id.get(), 1), EINVAL);
  EXPECT_ERRNO(rdma_resolve_addr(id.get(), nullptr, to.get(), 1000), EINVAL);
  EXPECT_ERRNO(rdma_connect(id.get(), nullptr), EINVAL);
  EXPECT_ERRNO(rdma_accept(id.get(), nullptr), EINVAL);
  EXPECT_ERRNO(rdma_disconnect(id.get()), EINVAL);
}

TEST(BadCalls, ListenWithoutBindSelectsAPort) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  ASSERT_EQ(rdma_listen(id.get(), 0), 0);
  EXPECT_NE(source_port(id.get()), 0);
}

TEST(BadCalls, RejectsCallsOnAResolvedIdentifier) {
  ChannelPtr channel = make_channel();
  const IdPtr id = resolve(channel.get(), "127.0.0.1", 9);
  Address to = ip("127.0.0.1", 1);
  EXPECT_ERRNO(rdma_resolve_addr(id.get(), nullptr, to.get(), 1000), EINVAL);
  EXPECT_ERRNO(rdma_resolve_route(id.get(), 1000), EINVAL);
  EXPECT_ERRNO(rdma_listen(id.get(), 1), EINVAL);
  EXPECT_ERRNO(rdma_accept(id.get(), nullptr), EINVAL);
  EXPECT_ERRNO(rdma_disconnect(id.get()), EINVAL);
  EXPECT_ERRNO(rdma_connect(id.get(), nullptr), EINVAL);  // neither a queue pair nor its number
}

TEST(BadCalls, RejectsCallsOnAConnectedIdentifier) {
  Pair pair;
  pair.connect();
  rdma_conn_param param = connect_parameters();
  EXPECT_ERRNO(rdma_connect(pair.client.get(), &param), EINVAL);
  EXPECT_ERRNO(rdma_accept(pair.client.get(), &param), EINVAL);
  EXPECT_ERRNO(rdma_accept(pair.server.get(), &param), EINVAL);
  EXPECT_ERRNO(rdma_reject(pair.server.get(), nullptr, 0), EINVAL);
  EXPECT_ERRNO(rdma_establish(pair.client.get()), EINVAL);
  expect_data_flows(pair.client.get(), pair.server.get());  // the rejected calls had no effect
}

TEST(BadCalls, RejectsTooMuchPrivateData) {
  Pair pair;
  pair.client = resolve(pair.client_channel.get(), "127.0.0.1", source_port(pair.listener.get()));
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(pair.client.get(), nullptr, &attr), 0);
  const std::string too_long(255, 'x');
  rdma_conn_param param = connect_parameters(too_long);
  param.private_data_len = 57;
  EXPECT_ERRNO(rdma_connect(pair.client.get(), &param), EINVAL);
  param.private_data_len = 56;
  ASSERT_EQ(rdma_connect(pair.client.get(), &param), 0);
  EventPtr request = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  pair.server.reset(request->id);
  request.reset();
  EXPECT_ERRNO(rdma_reject(pair.server.get(), too_long.data(), 149), EINVAL);
  param.qp_num = 77;
  param.private_data_len = 197;
  EXPECT_ERRNO(rdma_accept(pair.server.get(), &param), EINVAL);
  expect_event(pair.client_channel.get(), RDMA_CM_EVENT_REJECTED, 28);  // at once
  EXPECT_ERRNO(rdma_reject(pair.server.get(), too_long.data(), 148), EINVAL);
}

TEST(BadCalls, AnInvalidSidrReplyRejectsTheRequest) {
  Pair pair("127.0.0.1", RDMA_PS_UDP);
  pair.request();
  const std::string too_long(255, 'x');
  rdma_conn_param param = connect_parameters(too_long);
  EXPECT_ERRNO(rdma_accept(pair.server.get(), &param), EINVAL);
  EventPtr rejected = next_event(pair.client_channel.get());
  ASSERT_NE(rejected, nullptr);
  EXPECT_EQ(rejected->event, RDMA_CM_EVENT_UNREACHABLE);
}

TEST(BadCalls, RejectsMoreThanTheLimitsOfTheDevice) {
  Pair pair;
  pair.client = resolve(pair.client_channel.get(), "127.0.0.1", source_port(pair.listener.get()));
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(pair.client->verbs, &device), 0);
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(pair.client.get(), nullptr, &attr), 0);
  if (device.max_qp_rd_atom < 254) {
    rdma_conn_param param = connect_parameters();
    param.responder_resources = static_cast<uint8_t>(device.max_qp_rd_atom + 1);
    EXPECT_ERRNO(rdma_connect(pair.client.get(), &param), EINVAL);
    param = connect_parameters();
    param.initiator_depth = static_cast<uint8_t>(device.max_qp_init_rd_atom + 1);
    EXPECT_ERRNO(rdma_connect(pair.client.get(), &param), EINVAL);
  }
}

TEST(BadCalls, RejectsAPdOfAnotherContext) {
  ChannelPtr channel = make_channel();
  const IdPtr id = resolve(channel.get(), "127.0.0.1", 9);
  ibv_context* other = ibv_open_device(id->verbs->device);
  ASSERT_NE(other, nullptr);
  ibv_pd* pd = ibv_alloc_pd(other);
  ibv_qp_init_attr attr = qp_attributes();
  EXPECT_ERRNO(rdma_create_qp(id.get(), pd, &attr), EINVAL);
  EXPECT_EQ(id->qp, nullptr);
  EXPECT_EQ(id->send_cq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
}

TEST(BadCalls, AFailedQueuePairCreationLeavesNoObjects) {
  ChannelPtr channel = make_channel();
  const IdPtr id = resolve(channel.get(), "127.0.0.1", 9);
  ibv_qp_init_attr attr = qp_attributes();
  attr.cap.max_send_sge = 100'000;
  EXPECT_ERRNO(rdma_create_qp(id.get(), nullptr, &attr), EINVAL);
  EXPECT_EQ(id->qp, nullptr);
  EXPECT_EQ(id->send_cq, nullptr);
  EXPECT_EQ(id->recv_cq_channel, nullptr);
  attr = qp_attributes();
  EXPECT_EQ(rdma_create_qp(id.get(), nullptr, &attr), 0);
  EXPECT_ERRNO(rdma_create_qp(id.get(), nullptr, &attr), EINVAL);  // it already has one
}

// The peer accepts, but the local queue pair cannot change to RTS.
TEST(BadCalls, AQueuePairThatCannotBecomeReadyFailsTheConnection) {
  Pair pair;
  pair.request();
  ibv_qp_attr broken{};
  broken.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(pair.client->qp, &broken, IBV_QP_STATE), 0);
  rdma_conn_param param = connect_parameters();
  ASSERT_EQ(rdma_accept(pair.server.get(), &param), 0);
  expect_event(pair.client_channel.get(), RDMA_CM_EVENT_CONNECT_ERROR, -EINVAL);
  expect_event(pair.server_channel.get(), RDMA_CM_EVENT_REJECTED, 28);
}

TEST(BadCalls, RejectsAcceptWithAQueuePairInError) {
  Pair pair;
  pair.request();
  ibv_qp_attr broken{};
  broken.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(pair.server->qp, &broken, IBV_QP_STATE), 0);
  EXPECT_ERRNO(rdma_accept(pair.server.get(), nullptr), EINVAL);
  pair.server.reset();
  expect_event(pair.client_channel.get(), RDMA_CM_EVENT_REJECTED, 28);
}

}  // namespace
}  // namespace verbena::test
