// rdma_set_option: the effect of each option, and rejected values.
#include <arpa/inet.h>

#include <cstring>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

int set_byte(rdma_cm_id* id, int option, uint8_t value) {
  return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof value);
}
int set_flag(rdma_cm_id* id, int option, int value) {
  return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof value);
}

TEST(Options, TypeOfServiceAppliesToPathAndQueuePairs) {
  Pair pair;
  pair.client = make_id(pair.client_channel.get());
  ASSERT_EQ(set_byte(pair.client.get(), RDMA_OPTION_ID_TOS, 0x68), 0);
  pair.request();
  ASSERT_NE(pair.server, nullptr);
  EXPECT_EQ(pair.client->route.path_rec->traffic_class, 0x68);
  EXPECT_EQ(pair.server->route.path_rec->traffic_class, 0x68);
  ASSERT_EQ(rdma_accept(pair.server.get(), nullptr), 0);
  expect_event(pair.client_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  expect_event(pair.server_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  for (rdma_cm_id* id : {pair.client.get(), pair.server.get()}) {
    ibv_qp_attr now{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(id->qp, &now, IBV_QP_AV, &init), 0);
    EXPECT_EQ(now.ah_attr.grh.traffic_class, 0x68);
  }
  expect_data_flows(pair.client.get(), pair.server.get());
}

TEST(Options, AckTimeoutAppliesToTheQueuePair) {
  Pair pair;
  pair.client = make_id(pair.client_channel.get());
  ASSERT_EQ(set_byte(pair.client.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 12), 0);
  pair.request();
  ASSERT_NE(pair.server, nullptr);
  EXPECT_EQ(pair.client->route.path_rec->packet_life_time, 11);
  ASSERT_EQ(set_byte(pair.server.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 14), 0);
  ASSERT_EQ(rdma_accept(pair.server.get(), nullptr), 0);
  expect_event(pair.client_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  ibv_qp_attr now{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(pair.client->qp, &now, IBV_QP_TIMEOUT, &init), 0);
  EXPECT_EQ(now.timeout, 12);
  ASSERT_EQ(ibv_query_qp(pair.server->qp, &now, IBV_QP_TIMEOUT, &init), 0);
  EXPECT_EQ(now.timeout, 14);
}

ibv_path_data path_between(rdma_cm_id* id) {
  ibv_path_data data{};
  data.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
  data.path.sgid = id->route.addr.addr.ibaddr.sgid;
  data.path.dgid = id->route.addr.addr.ibaddr.dgid;
  data.path.flowlabel_hoplimit = htonl(0x12345 << 8 | 17);
  data.path.tclass = 0x20;
  data.path.reversible_numpath = IBV_PATH_RECORD_REVERSIBLE | 1;
  data.path.pkey = htons(0xFFFF);
  data.path.mtu = 2 << 6 | IBV_MTU_1024;
  data.path.packetlifetime = 2 << 6 | 14;
  return data;
}

int set_paths(rdma_cm_id* id, std::vector<ibv_path_data> paths) {
  return rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths.data(),
                         paths.size() * sizeof paths[0]);
}

TEST(Options, APathRecordReplacesTheRoute) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  Address to = ip("127.0.0.1", 9);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, to.get(), 1000), 0);
  expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  ibv_path_data alternate = path_between(id.get());
  alternate.flags = IBV_PATH_FLAG_ALTERNATE;
  EXPECT_ERRNO(set_paths(id.get(), {alternate}), EINVAL);
  ibv_path_data elsewhere = path_between(id.get());
  elsewhere.path.dgid.raw[15] ^= 1;
  EXPECT_ERRNO(set_paths(id.get(), {elsewhere}), EINVAL);
  ASSERT_EQ(set_paths(id.get(), {alternate, path_between(id.get())}), 0) << strerror(errno);
  expect_event(channel.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(id->route.num_paths, 1);
  EXPECT_EQ(id->route.path_rec->mtu, IBV_MTU_1024);
  EXPECT_EQ(id->route.path_rec->hop_limit, 17);
  EXPECT_EQ(ntohl(id->route.path_rec->flow_label), 0x12345u);
  EXPECT_EQ(id->route.path_rec->traffic_class, 0x20);
  EXPECT_EQ(id->route.path_rec->packet_life_time, 14);
  EXPECT_ERRNO(rdma_resolve_route(id.get(), 1000), EINVAL);
  EXPECT_ERRNO(set_paths(id.get(), {path_between(id.get())}), EINVAL);
}

TEST(Options, RejectsWrongSizesLevelsAndStates) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  int int_value = 1;
  uint8_t byte = 1;
  const auto set = [&](int level, int name, void* value, size_t size) {
    return rdma_set_option(id.get(), level, name, value, size);
  };
  EXPECT_ERRNO(set(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &int_value, sizeof int_value), EINVAL);
  EXPECT_ERRNO(set(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, sizeof byte), EINVAL);
  EXPECT_ERRNO(set(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &byte, sizeof byte), EINVAL);
  EXPECT_ERRNO(set(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &int_value, sizeof int_value),
               EINVAL);
  EXPECT_ERRNO(set(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, nullptr, 1), EINVAL);
  EXPECT_ERRNO(set(RDMA_OPTION_ID, 99, &int_value, sizeof int_value), ENOSYS);
  EXPECT_ERRNO(set(RDMA_OPTION_IB, 99, &int_value, sizeof int_value), ENOSYS);
  EXPECT_ERRNO(set(99, RDMA_OPTION_ID_TOS, &byte, sizeof byte), ENOSYS);
  EXPECT_ERRNO(set(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &int_value, sizeof int_value), EINVAL);
  EXPECT_ERRNO(set_byte(id.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 32), EINVAL);

  const IdPtr datagrams = make_id(channel.get(), RDMA_PS_UDP);
  EXPECT_ERRNO(set_byte(datagrams.get(), RDMA_OPTION_ID_ACK_TIMEOUT, 12), EINVAL);

  const IdPtr listener = listen_on(channel.get(), "127.0.0.1");
  EXPECT_ERRNO(set_flag(listener.get(), RDMA_OPTION_ID_REUSEADDR, 1), EINVAL);
  EXPECT_ERRNO(set_flag(listener.get(), RDMA_OPTION_ID_AFONLY, 1), EINVAL);
}

}  // namespace
}  // namespace verbena::test
