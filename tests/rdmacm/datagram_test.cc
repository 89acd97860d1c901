// Datagram services: SIDR asks for the queue pair and Q_Key of the peer; nothing is connected.
#include <cstring>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

constexpr int kUnsupportedService = 1;
constexpr int kRejected = 2;

void send_datagram(rdma_cm_id* from, ibv_ah* ah, uint32_t qpn, rdma_cm_id* to) {
  char sent[64] = "a datagram";
  char received[64 + kGrhBytes] = "";
  ibv_mr* out = rdma_reg_msgs(from, sent, sizeof sent);
  ibv_mr* in = rdma_reg_msgs(to, received, sizeof received);
  ASSERT_EQ(rdma_post_recv(to, nullptr, received, sizeof received, in), 0);
  ASSERT_EQ(rdma_post_ud_send(from, nullptr, sent, sizeof sent, out, 0, ah, qpn), 0);
  ibv_wc wc{};
  EXPECT_EQ(rdma_get_send_comp(from, &wc), 1);
  EXPECT_EQ(rdma_get_recv_comp(to, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.src_qp, from->qp->qp_num);
  EXPECT_STREQ(received + kGrhBytes, "a datagram");
  rdma_dereg_mr(out);
  rdma_dereg_mr(in);
}

void request_and_send(const std::string& address, rdma_port_space space) {
  Pair pair(address, space);
  const std::string request_data(180, 'q');
  rdma_conn_param requested = connect_parameters(request_data);
  pair.client =
      resolve(pair.client_channel.get(), address, source_port(pair.listener.get()), space);
  ibv_qp_init_attr attr = qp_attributes(IBV_QPT_UD);
  ASSERT_EQ(rdma_create_qp(pair.client.get(), nullptr, &attr), 0) << strerror(errno);
  EXPECT_EQ(state_of(pair.client->qp), IBV_QPS_RTS);
  ASSERT_EQ(rdma_connect(pair.client.get(), &requested), 0) << strerror(errno);

  EventPtr request = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(request, nullptr);
  pair.server.reset(request->id);
  EXPECT_EQ(request->param.ud.private_data_len, 180);
  EXPECT_EQ(data_of(request->param.ud), request_data);
  EXPECT_EQ(pair.server->qp_type, IBV_QPT_UD);
  EXPECT_EQ(destination_port(pair.server.get()), source_port(pair.client.get()));
  attr = qp_attributes(IBV_QPT_UD);
  ASSERT_EQ(rdma_create_qp(pair.server.get(), nullptr, &attr), 0);
  const std::string reply_data(136, 'a');
  rdma_conn_param accept = connect_parameters(reply_data);
  ASSERT_EQ(rdma_accept(pair.server.get(), &accept), 0) << strerror(errno);

  EventPtr established = expect_event(pair.client_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  ASSERT_NE(established, nullptr);
  rdma_ud_param& ud = established->param.ud;
  EXPECT_EQ(ud.private_data_len, 136);
  EXPECT_EQ(data_of(ud), reply_data);
  EXPECT_EQ(ud.qp_num, pair.server->qp->qp_num);
  EXPECT_EQ(ud.qkey, uint32_t{RDMA_UDP_QKEY});
  EXPECT_EQ(ud.ah_attr.is_global, 1);
  EXPECT_EQ(ud.ah_attr.port_num, 1);
  EXPECT_EQ(std::memcmp(&ud.ah_attr.grh.dgid, &pair.server->route.addr.addr.ibaddr.sgid, 16), 0);
  ibv_ah* ah = ibv_create_ah(pair.client->pd, &ud.ah_attr);
  ASSERT_NE(ah, nullptr);
  send_datagram(pair.client.get(), ah, ud.qp_num, pair.server.get());
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST(Datagrams, WorkOverIpv4) { request_and_send("127.0.0.1", RDMA_PS_UDP); }
TEST(Datagrams, WorkInThePortSpaceIpoib) { request_and_send("127.0.0.1", RDMA_PS_IPOIB); }
TEST(Datagrams, WorkOverIpv6) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  request_and_send("::1", RDMA_PS_UDP);
}

TEST(Datagrams, ReportARejection) {
  Pair pair("127.0.0.1", RDMA_PS_UDP);
  pair.request();
  ASSERT_EQ(rdma_reject(pair.server.get(), "no", 2), 0);
  EventPtr rejected = expect_event(pair.client_channel.get(), RDMA_CM_EVENT_UNREACHABLE, kRejected);
  ASSERT_NE(rejected, nullptr);
  EXPECT_EQ(data_of(rejected->param.ud), "no");
  EXPECT_ERRNO(rdma_accept(pair.server.get(), nullptr), EINVAL);
}

TEST(Datagrams, ReportThatNoServiceExists) {
  ChannelPtr channel = make_channel();
  const IdPtr client = resolve(channel.get(), "127.0.0.1", 9, RDMA_PS_UDP);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  expect_event(channel.get(), RDMA_CM_EVENT_UNREACHABLE, kUnsupportedService);
}

TEST(Datagrams, AreAcceptedWithoutParameters) {
  Pair pair("127.0.0.1", RDMA_PS_UDP);
  pair.request();
  ASSERT_EQ(rdma_accept(pair.server.get(), nullptr), 0);
  EventPtr established = expect_event(pair.client_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  ASSERT_NE(established, nullptr);
  EXPECT_EQ(established->param.ud.qp_num, pair.server->qp->qp_num);
}

TEST(Datagrams, ReportAQueuePairOfTheProgram) {
  Pair pair("127.0.0.1", RDMA_PS_UDP);
  pair.client = resolve(pair.client_channel.get(), "127.0.0.1", source_port(pair.listener.get()),
                        RDMA_PS_UDP);
  ASSERT_EQ(rdma_connect(pair.client.get(), nullptr), 0);
  EventPtr request = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  pair.server.reset(request->id);
  request.reset();
  rdma_conn_param param{};
  param.qp_num = 0x4321;
  ASSERT_EQ(rdma_accept(pair.server.get(), &param), 0);
  EXPECT_EQ(expect_event(pair.client_channel.get(), RDMA_CM_EVENT_ESTABLISHED)->param.ud.qp_num,
            0x4321u);
}

TEST(Datagrams, ShareAPortWithConnections) {
  ChannelPtr channel = make_channel();
  const IdPtr datagrams = listen_on(channel.get(), "127.0.0.1", RDMA_PS_UDP);
  const uint16_t port = source_port(datagrams.get());
  const IdPtr connections = listen_on(channel.get(), "127.0.0.1", RDMA_PS_TCP, port);
  ChannelPtr clients = make_channel();
  const IdPtr client = resolve(clients.get(), "127.0.0.1", port, RDMA_PS_UDP);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  EventPtr request = expect_event(channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->listen_id, datagrams.get());
  const IdPtr child(request->id);
}

TEST(Datagrams, RejectTooMuchPrivateData) {
  ChannelPtr channel = make_channel();
  const IdPtr client = resolve(channel.get(), "127.0.0.1", 9, RDMA_PS_UDP);
  const std::string data(181, 'x');
  rdma_conn_param param = connect_parameters(data);
  EXPECT_ERRNO(rdma_connect(client.get(), &param), EINVAL);
  EXPECT_EQ(rdma_connect(client.get(), nullptr), 0);  // a second call works
}

}  // namespace
}  // namespace verbena::test
