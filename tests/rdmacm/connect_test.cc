// Connecting, accepting, rejecting and disconnecting: events, private data, reasons, and the states
// of the queue pairs.
#include <cstring>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

constexpr int kNoResources = 3;
constexpr int kInvalidService = 8;
constexpr int kConsumer = 28;

void connect_and_exchange(const std::string& listen_address, const std::string& connect_address) {
  Pair pair(listen_address);
  pair.address = connect_address;
  pair.connect();
  ASSERT_NE(pair.server, nullptr);
  EXPECT_EQ(state_of(pair.client->qp), IBV_QPS_RTS);
  EXPECT_EQ(state_of(pair.server->qp), IBV_QPS_RTS);
  expect_data_flows(pair.client.get(), pair.server.get());
  expect_data_flows(pair.server.get(), pair.client.get());
  ASSERT_EQ(rdma_disconnect(pair.client.get()), 0);
  EXPECT_EQ(state_of(pair.client->qp), IBV_QPS_ERR);
  pair.expect_disconnected();
  EXPECT_EQ(rdma_disconnect(pair.server.get()), 0);
  EXPECT_EQ(state_of(pair.server->qp), IBV_QPS_ERR);
}

TEST(Connect, ConnectsOverIpv4) { connect_and_exchange("127.0.0.1", "127.0.0.1"); }
TEST(Connect, ConnectsToAWildcard) { connect_and_exchange("0.0.0.0", "127.0.0.1"); }

TEST(Connect, ConnectsOverIpv6) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  connect_and_exchange("::1", "::1");
  connect_and_exchange("::", "::1");
}

TEST(Connect, TheIpv6WildcardAcceptsIpv4) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  connect_and_exchange("::", "127.0.0.1");
}

TEST(Connect, RequestsReachTheListenerOfTheirPort) {
  // A listener on one address, and one on every address with another port.
  ChannelPtr channel = make_channel();
  const IdPtr exact = listen_on(channel.get(), "127.0.0.1");
  const IdPtr wild = listen_on(channel.get(), "0.0.0.0");
  for (rdma_cm_id* listener : {exact.get(), wild.get()}) {
    ChannelPtr other = make_channel();
    const IdPtr client = resolve(other.get(), "127.0.0.1", source_port(listener));
    rdma_conn_param param = connect_parameters();
    param.qp_num = 0x1234 + source_port(listener);
    ASSERT_EQ(rdma_connect(client.get(), &param), 0);
    EventPtr request = expect_event(channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->listen_id, listener);
    EXPECT_EQ(request->param.conn.qp_num, param.qp_num);
    const IdPtr child(request->id);
  }
}

TEST(Connect, ARequestThatThePeerGaveUpIsNotReported) {
  ChannelPtr channel = make_channel();
  const IdPtr listener = listen_on(channel.get(), "127.0.0.1");
  ChannelPtr other = make_channel();
  rdma_conn_param param = connect_parameters();
  for (int i = 0; i < 3; ++i) {
    IdPtr client = resolve(other.get(), "127.0.0.1", source_port(listener.get()));
    param.qp_num = 0x100;
    ASSERT_EQ(rdma_connect(client.get(), &param), 0);
    ASSERT_TRUE(event_within_ms(channel.get(), 10'000));
    client.reset();
    EXPECT_TRUE(within_ms(10'000, [&] { return !event_within_ms(channel.get(), 0); }));
  }
  const IdPtr client = resolve(other.get(), "127.0.0.1", source_port(listener.get()));
  param.qp_num = 0x200;
  ASSERT_EQ(rdma_connect(client.get(), &param), 0);
  EventPtr request = expect_event(channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->param.conn.qp_num, 0x200u);
  const IdPtr child(request->id);
}

TEST(Connect, ARequestReportsItsParameters) {
  Pair pair;
  const std::string data(56, 'q');
  rdma_conn_param param = connect_parameters(data);
  param.responder_resources = 3;
  param.initiator_depth = 2;
  param.retry_count = 5;
  param.rnr_retry_count = 4;
  param.flow_control = 1;
  int context = 0;
  pair.listener->context = &context;
  pair.client = resolve(pair.client_channel.get(), "127.0.0.1", source_port(pair.listener.get()));
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(pair.client.get(), nullptr, &attr), 0);
  ASSERT_EQ(rdma_connect(pair.client.get(), &param), 0);
  EventPtr event = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(event, nullptr);
  pair.server.reset(event->id);
  const rdma_conn_param& got = event->param.conn;
  EXPECT_EQ(got.private_data_len, 56);
  EXPECT_EQ(data_of(got), data);
  EXPECT_EQ(got.responder_resources, 2);  // from the view of the passive side
  EXPECT_EQ(got.initiator_depth, 3);
  EXPECT_EQ(got.retry_count, 5);
  EXPECT_EQ(got.rnr_retry_count, 4);
  EXPECT_EQ(got.flow_control, 1);
  EXPECT_EQ(got.srq, 0);
  EXPECT_EQ(got.qp_num, pair.client->qp->qp_num);

  rdma_cm_id* id = event->id;
  EXPECT_EQ(id->context, &context);
  EXPECT_EQ(id->channel, pair.server_channel.get());
  EXPECT_EQ(id->verbs, pair.client->verbs);
  EXPECT_NE(id->pd, nullptr);
  EXPECT_EQ(id->port_num, 1);
  EXPECT_EQ(id->ps, RDMA_PS_TCP);
  EXPECT_EQ(id->qp_type, IBV_QPT_RC);
  EXPECT_EQ(source_port(id), source_port(pair.listener.get()));
  EXPECT_EQ(destination_port(id), source_port(pair.client.get()));
  EXPECT_EQ(text_of(rdma_get_peer_addr(id)), "127.0.0.1");
  ASSERT_EQ(id->route.num_paths, 1);
  EXPECT_EQ(id->route.path_rec->mtu, pair.client->route.path_rec->mtu);
  EXPECT_EQ(std::memcmp(&id->route.addr.addr.ibaddr.dgid, &pair.client->route.addr.addr.ibaddr.sgid,
                        sizeof(ibv_gid)),
            0);
}

TEST(Connect, TheEstablishedEventReportsTheAgreedParameters) {
  Pair pair;
  rdma_conn_param requested = connect_parameters();
  requested.responder_resources = 6;
  requested.initiator_depth = 5;
  pair.request(&requested);
  const std::string data(196, 'r');
  rdma_conn_param accept = connect_parameters(data);
  accept.responder_resources = 4;
  accept.initiator_depth = 3;
  ASSERT_EQ(rdma_accept(pair.server.get(), &accept), 0);
  EventPtr established = expect_event(pair.client_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  ASSERT_NE(established, nullptr);
  const rdma_conn_param& got = established->param.conn;
  EXPECT_EQ(got.private_data_len, 196);
  EXPECT_EQ(data_of(got), data);
  EXPECT_EQ(got.responder_resources, 3);
  EXPECT_EQ(got.initiator_depth, 4);
  EXPECT_EQ(got.qp_num, pair.server->qp->qp_num);
  expect_event(pair.server_channel.get(), RDMA_CM_EVENT_ESTABLISHED);

  ibv_qp_attr client{};
  ibv_qp_attr server{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(pair.client->qp, &client, IBV_QP_MAX_QP_RD_ATOMIC, &init), 0);
  ASSERT_EQ(ibv_query_qp(pair.server->qp, &server, IBV_QP_MAX_QP_RD_ATOMIC, &init), 0);
  EXPECT_EQ(client.max_rd_atomic, 4);
  EXPECT_EQ(client.max_dest_rd_atomic, 3);
  EXPECT_EQ(server.max_rd_atomic, 3);
  EXPECT_EQ(server.max_dest_rd_atomic, 4);
  EXPECT_EQ(client.dest_qp_num, pair.server->qp->qp_num);
  EXPECT_EQ(server.dest_qp_num, pair.client->qp->qp_num);
  EXPECT_EQ(client.rq_psn, server.sq_psn);
  EXPECT_EQ(server.rq_psn, client.sq_psn);
  EXPECT_EQ(client.retry_cnt, 7);
  EXPECT_EQ(client.rnr_retry, 7);
  EXPECT_EQ(client.min_rnr_timer, 0);
  EXPECT_GE(client.timeout, 17);
  EXPECT_NE(client.qp_access_flags & IBV_ACCESS_REMOTE_READ, 0u);
}

TEST(Connect, UsesTheLimitsOfTheDeviceWithoutParameters) {
  Pair pair;
  pair.client = resolve(pair.client_channel.get(), "127.0.0.1", source_port(pair.listener.get()));
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(pair.client.get(), nullptr, &attr), 0);
  ASSERT_EQ(rdma_connect(pair.client.get(), nullptr), 0);
  EventPtr request = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(request, nullptr);
  pair.server.reset(request->id);
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(pair.client->verbs, &device), 0);
  EXPECT_EQ(request->param.conn.initiator_depth, device.max_qp_rd_atom);
  EXPECT_EQ(request->param.conn.responder_resources, device.max_qp_init_rd_atom);
  EXPECT_EQ(request->param.conn.retry_count, 7);
  request.reset();
  attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(pair.server.get(), nullptr, &attr), 0);
  ASSERT_EQ(rdma_accept(pair.server.get(), nullptr), 0);
  expect_event(pair.client_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  expect_event(pair.server_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  expect_data_flows(pair.client.get(), pair.server.get());
}

TEST(Connect, BothEndsCanDisconnectAtOnce) {
  Pair pair;
  pair.connect();
  ASSERT_EQ(rdma_disconnect(pair.client.get()), 0);
  ASSERT_EQ(rdma_disconnect(pair.server.get()), 0);
  pair.expect_disconnected();
}

TEST(Connect, ReportsTheEndOfTimewait) {
  Pair pair;
  pair.connect();
  ASSERT_EQ(rdma_disconnect(pair.client.get()), 0);
  pair.expect_disconnected();
  expect_event(pair.client_channel.get(), RDMA_CM_EVENT_TIMEWAIT_EXIT);
  expect_event(pair.server_channel.get(), RDMA_CM_EVENT_TIMEWAIT_EXIT);
  EXPECT_EQ(rdma_disconnect(pair.client.get()), 0);  // no effect
}

TEST(Connect, DestroyingAnIdentifierDisconnectsIt) {
  Pair pair;
  pair.connect();
  pair.client.reset();
  expect_event(pair.server_channel.get(), RDMA_CM_EVENT_DISCONNECTED);
}

TEST(Connect, DisconnectsAfterTheProgramDestroyedTheQueuePair) {
  // rping destroys the queue pair without rdma_destroy_qp.
  Pair pair;
  pair.connect();
  ibv_qp* qp = pair.client->qp;
  ASSERT_EQ(rdma_disconnect(pair.client.get()), 0);
  ASSERT_EQ(ibv_destroy_qp(qp), 0);
  pair.expect_disconnected();
  pair.client->qp = nullptr;
  ibv_cq* cqs[] = {pair.client->send_cq, pair.client->recv_cq};
  for (ibv_cq* cq : cqs) EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(pair.client->send_cq_channel), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(pair.client->recv_cq_channel), 0);
}

// ------------------------------------------------------------------------------------ rejecting

TEST(Reject, ReportsReasonAndPrivateData) {
  Pair pair;
  pair.request();
  const std::string data(148, 'n');
  ASSERT_EQ(rdma_reject(pair.server.get(), data.data(), static_cast<uint8_t>(data.size())), 0);
  EventPtr rejected = expect_event(pair.client_channel.get(), RDMA_CM_EVENT_REJECTED, kConsumer);
  ASSERT_NE(rejected, nullptr);
  EXPECT_EQ(rejected->param.conn.private_data_len, 148);
  EXPECT_EQ(data_of(rejected->param.conn), data);
  EXPECT_EQ(state_of(pair.client->qp), IBV_QPS_ERR);
  EXPECT_ERRNO(rdma_accept(pair.server.get(), nullptr), EINVAL);
  EXPECT_ERRNO(rdma_reject(pair.server.get(), nullptr, 0), EINVAL);
}

TEST(Reject, CanRejectAfterAcceptBeforeEstablished) {
  Pair pair;
  pair.request();
  rdma_conn_param param = connect_parameters();
  ASSERT_EQ(rdma_accept(pair.server.get(), &param), 0);
  const std::string data = "no, after all";
  EXPECT_EQ(rdma_reject(pair.server.get(), data.data(), static_cast<uint8_t>(data.size())), 0);
  // The REJ is received before the REP is handled, while it is handled, or afterwards.
  EventPtr end = next_event(pair.client_channel.get());
  ASSERT_NE(end, nullptr);
  switch (end->event) {
    case RDMA_CM_EVENT_REJECTED:
      EXPECT_EQ(end->status, 28);
      break;
    case RDMA_CM_EVENT_CONNECT_ERROR:
      break;
    default:
      EXPECT_STREQ(rdma_event_str(end->event), rdma_event_str(RDMA_CM_EVENT_ESTABLISHED));
      end = expect_event(pair.client_channel.get(), RDMA_CM_EVENT_DISCONNECTED, -ECONNRESET);
      EXPECT_NE(end, nullptr);
  }
}

TEST(Connect, ARequestGetsTheContextOfTheListenerWhenItIsRead) {
  Pair pair;
  pair.client = resolve(pair.client_channel.get(), "127.0.0.1", source_port(pair.listener.get()));
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(pair.client.get(), nullptr, &attr), 0);
  ASSERT_EQ(rdma_connect(pair.client.get(), nullptr), 0);
  ASSERT_TRUE(event_within_ms(pair.server_channel.get(), 5000));
  pair.listener->context = &pair;
  const EventPtr request = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(request, nullptr);
  pair.server.reset(request->id);
  EXPECT_EQ(pair.server->context, &pair);
}

// rping disconnects after any failure and waits until its receive is flushed.
TEST(Disconnect, FlushesReceivesAlthoughNothingIsConnected) {
  ChannelPtr channel = make_channel();
  const IdPtr id = resolve(channel.get(), "127.0.0.1", 9);
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(id.get(), nullptr, &attr), 0);
  char buffer[8];
  ibv_mr* mr = rdma_reg_msgs(id.get(), buffer, sizeof buffer);
  ASSERT_NE(mr, nullptr);
  ASSERT_EQ(rdma_post_recv(id.get(), nullptr, buffer, sizeof buffer, mr), 0);
  EXPECT_ERRNO(rdma_disconnect(id.get()), EINVAL);
  EXPECT_EQ(state_of(id->qp), IBV_QPS_ERR);
  ibv_wc wc{};
  ASSERT_EQ(ibv_poll_cq(id->recv_cq, 1, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(rdma_dereg_mr(mr), 0);
}

TEST(Reject, ReportsTheReasonVendorOptions) {
  Pair pair;
  pair.request();
  ASSERT_EQ(rdma_reject_ece(pair.server.get(), "no", 2), 0);
  EventPtr rejected = expect_event(pair.client_channel.get(), RDMA_CM_EVENT_REJECTED, 35);
  ASSERT_NE(rejected, nullptr);
  EXPECT_EQ(data_of(rejected->param.conn), "no");
}

TEST(Reject, ReportsThatNoListenerExists) {
  ChannelPtr channel = make_channel();
  const IdPtr client = resolve(channel.get(), "127.0.0.1", 9);
  rdma_conn_param param = connect_parameters();
  param.qp_num = 77;
  ASSERT_EQ(rdma_connect(client.get(), &param), 0);
  expect_event(channel.get(), RDMA_CM_EVENT_REJECTED, kInvalidService);
}

TEST(Reject, IgnoresListenersOfAnotherPortSpace) {
  ChannelPtr channel = make_channel();
  const IdPtr listener = listen_on(channel.get(), "127.0.0.1", RDMA_PS_IB);
  const IdPtr client = resolve(channel.get(), "127.0.0.1", source_port(listener.get()));
  rdma_conn_param param = connect_parameters();
  param.qp_num = 77;
  ASSERT_EQ(rdma_connect(client.get(), &param), 0);
  expect_event(channel.get(), RDMA_CM_EVENT_REJECTED, kInvalidService);
}

TEST(Reject, RejectsRequestsBeyondTheBacklog) {
  ChannelPtr server_channel = make_channel();
  ChannelPtr client_channel = make_channel();
  const IdPtr listener = listen_on(server_channel.get(), "127.0.0.1", RDMA_PS_TCP, 0, 2);
  std::vector<IdPtr> clients;
  for (uint32_t i = 0; i < 3; ++i) {
    clients.push_back(resolve(client_channel.get(), "127.0.0.1", source_port(listener.get())));
    rdma_conn_param param = connect_parameters();
    param.qp_num = 100 + i;
    ASSERT_EQ(rdma_connect(clients.back().get(), &param), 0);
  }
  EventPtr rejected = expect_event(client_channel.get(), RDMA_CM_EVENT_REJECTED, kNoResources);
  ASSERT_NE(rejected, nullptr);
  EXPECT_EQ(rejected->id, clients[2].get());
  // Requests that the program has read no longer count.
  const IdPtr first(expect_event(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  IdPtr fourth = resolve(client_channel.get(), "127.0.0.1", source_port(listener.get()));
  rdma_conn_param param = connect_parameters();
  param.qp_num = 200;
  ASSERT_EQ(rdma_connect(fourth.get(), &param), 0);
  const IdPtr second(expect_event(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  EventPtr last = expect_event(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->param.conn.qp_num, 200u);
  const IdPtr third(last->id);
}

TEST(Reject, DestroyingAListenerRejectsItsUnreadRequests) {
  Pair pair;
  pair.client = resolve(pair.client_channel.get(), "127.0.0.1", source_port(pair.listener.get()));
  rdma_conn_param param = connect_parameters();
  param.qp_num = 77;
  ASSERT_EQ(rdma_connect(pair.client.get(), &param), 0);
  ASSERT_TRUE(event_within_ms(pair.server_channel.get(), 10'000));
  pair.listener.reset();
  expect_event(pair.client_channel.get(), RDMA_CM_EVENT_REJECTED, kConsumer);
  EXPECT_FALSE(event_within_ms(pair.server_channel.get(), 0));
}

TEST(Reject, DestroyingARequestRejectsIt) {
  Pair pair;
  pair.request();
  pair.server.reset();
  expect_event(pair.client_channel.get(), RDMA_CM_EVENT_REJECTED, kConsumer);
}

TEST(Reject, CannotAcceptARequestWhosePeerEnded) {
  Pair pair;
  pair.request();
  pair.client.reset();
  EventPtr end =
      next_event(pair.server_channel.get());  // a REJ with reason timeout: the peer gave up
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->event, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(end->id, pair.server.get());
  end.reset();
  EXPECT_ERRNO(rdma_accept(pair.server.get(), nullptr), EINVAL);
}

}  // namespace
}  // namespace verbena::test
