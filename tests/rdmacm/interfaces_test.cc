// Several network interfaces that appear and disappear: which devices are used. Each test has its
// own network namespace.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

// Two Ethernet interfaces besides loopback: left, 10.5.0.1, and right, 10.5.0.2. The kernel needs
// up to a second to report them as up.
#define MAKE_LEFT_AND_RIGHT                                                        \
  "ip link add left type veth peer name right; ip addr add 10.5.0.1/24 dev left; " \
  "ip addr add 10.5.0.2/24 dev right; ip link set left up; ip link set right up; " \
  "until [ $(ip link | grep -c \"state UP\") = 2 ]; do sleep 0.01; done"
constexpr const char* kNamespace =
    "unshare -rn sh -c 'ip link set lo up; " MAKE_LEFT_AND_RIGHT "; exec \"$0\" \"$@\"'";

bool may_make_interfaces() {
  return std::system("unshare -rn ip link add left type veth peer name right >/dev/null 2>&1") == 0;
}

#define RUN_IN_NAMESPACE(name)                                                          \
  TEST(Interfaces, name) {                                                              \
    if (!may_make_interfaces()) GTEST_SKIP() << "cannot create network interfaces";     \
    EXPECT_TRUE(passes_in_new_process("InTheirNamespace.DISABLED_" #name, kNamespace)); \
  }                                                                                     \
  TEST(InTheirNamespace, DISABLED_##name)

// The number of devices that the processes of this namespace have open.
int slots_in_use() {
  std::ifstream sockets("/proc/net/unix");
  int count = 0;
  for (std::string line; std::getline(sockets, line);) {
    if (line.find("/slot/") != std::string::npos) ++count;
  }
  return count;
}

void claim_all_slots() {
  for (unsigned slot = 0; slot < 256; ++slot) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const int length =
        std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "verbena/2/slot/%u", slot);
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);  // until the process ends
    const auto size = offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length);
    ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&name), static_cast<socklen_t>(size)), 0);
  }
}

RUN_IN_NAMESPACE(AnAddressOpensOneDevice) {
  const ChannelPtr channel = make_channel();
  const IdPtr client = resolve(channel.get(), "127.0.0.1", 7);
  EXPECT_EQ(slots_in_use(), 1);
  const IdPtr server = listen_on(channel.get(), "10.5.0.1");
  EXPECT_EQ(slots_in_use(), 2);
  EXPECT_STREQ(ibv_get_device_name(server->verbs->device), "verbena_left");
  const IdPtr everywhere = listen_on(channel.get(), "0.0.0.0");
  EXPECT_EQ(slots_in_use(), 3);
}

RUN_IN_NAMESPACE(BindingToAnAddressFindsItsDevice) {
  const ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  Address at = ip("10.5.0.1");
  ASSERT_EQ(rdma_bind_addr(id.get(), at.get()), 0) << strerror(errno);
  ASSERT_NE(id->verbs, nullptr);
  EXPECT_STREQ(ibv_get_device_name(id->verbs->device), "verbena_left");
  EXPECT_NE(id->pd, nullptr);
  EXPECT_EQ(id->port_num, 1);
}

RUN_IN_NAMESPACE(ReturnsEbusyWithoutFreeSlots) {
  claim_all_slots();
  const ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  Address exact = ip("127.0.0.1");
  Address any = ip("0.0.0.0");
  EXPECT_ERRNO(rdma_bind_addr(id.get(), exact.get()), EBUSY);
  EXPECT_ERRNO(rdma_bind_addr(id.get(), any.get()), EBUSY);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, exact.get(), 1000), 0);
  expect_event(channel.get(), RDMA_CM_EVENT_ADDR_ERROR, -EBUSY);
}

void run(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

// Whether a request to the address reaches the listener of `channel`.
bool reaches(rdma_event_channel* channel, const std::string& address, uint16_t port) {
  const ChannelPtr own = make_channel();
  const IdPtr client = make_id(own.get());
  Address to = ip(address, port);
  if (rdma_resolve_addr(client.get(), nullptr, to.get(), 2000) != 0) return false;
  if (next_event(own.get())->event != RDMA_CM_EVENT_ADDR_RESOLVED) return false;
  EXPECT_EQ(rdma_resolve_route(client.get(), 2000), 0);
  expect_event(own.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
  ibv_qp_init_attr attr = qp_attributes();
  EXPECT_EQ(rdma_create_qp(client.get(), nullptr, &attr), 0);
  rdma_conn_param param = connect_parameters();
  if (rdma_connect(client.get(), &param) != 0) return false;
  while (!event_within_ms(own.get(), 1)) {
    if (!event_within_ms(channel, 1)) continue;
    const EventPtr request = expect_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    const IdPtr server(request->id);
    return true;
  }
  expect_event(own.get(), RDMA_CM_EVENT_REJECTED, 8);
  return false;
}

RUN_IN_NAMESPACE(AWildcardListensOnAddressesAddedLater) {
  const ChannelPtr channel = make_channel();
  const IdPtr listener = listen_on(channel.get(), "0.0.0.0");
  const uint16_t port = source_port(listener.get());
  run("ip addr add 10.6.0.1/24 dev left");
  EXPECT_TRUE(within_ms(20'000, [&] { return reaches(channel.get(), "10.6.0.1", port); }));
}

RUN_IN_NAMESPACE(AWildcardListensOnInterfacesAddedLater) {
  const ChannelPtr channel = make_channel();
  const IdPtr listener = listen_on(channel.get(), "0.0.0.0");
  const uint16_t port = source_port(listener.get());
  run("ip link add new type veth peer name other; ip link set other up; ip link set new up; "
      "ip addr add 10.7.0.1/24 dev new");
  EXPECT_TRUE(within_ms(20'000, [&] { return reaches(channel.get(), "10.7.0.1", port); }));
}

RUN_IN_NAMESPACE(AListenerOnLoopbackIsReachableOnlyThroughLoopback) {
  const ChannelPtr channel = make_channel();
  const IdPtr listener = listen_on(channel.get(), "127.0.0.1");
  const uint16_t port = source_port(listener.get());
  EXPECT_EQ(listener->verbs, nullptr);
  EXPECT_EQ(slots_in_use(), 1);
  EXPECT_TRUE(reaches(channel.get(), "127.0.0.1", port));
  EXPECT_FALSE(reaches(channel.get(), "10.5.0.1", port));
}

RUN_IN_NAMESPACE(AWildcardClosesRemovedDevices) {
  const ChannelPtr channel = make_channel();
  const IdPtr listener = listen_on(channel.get(), "0.0.0.0");
  EXPECT_EQ(slots_in_use(), 3);
  run("ip link del left");  // and right with it
  EXPECT_TRUE(within_ms(20'000, [] { return slots_in_use() == 1; }));
  EXPECT_FALSE(event_within_ms(channel.get(), 0));
  EXPECT_TRUE(reaches(channel.get(), "127.0.0.1", source_port(listener.get())));
}

RUN_IN_NAMESPACE(ReportsDeviceRemovalToItsIdentifiers) {
  {
    Pair pair("10.5.0.1");
    pair.connect();
    run("ip link del left");
    const EventPtr event = expect_event(pair.client_channel.get(), RDMA_CM_EVENT_DEVICE_REMOVAL);
    // Client and server have the same address, so both are on the same device, as is the listener.
    const EventPtr one = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_DEVICE_REMOVAL);
    const EventPtr two = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_DEVICE_REMOVAL);
    ASSERT_TRUE(event != nullptr && one != nullptr && two != nullptr);
    EXPECT_EQ(event->id, pair.client.get());
    EXPECT_TRUE((one->id == pair.server.get() && two->id == pair.listener.get()) ||
                (two->id == pair.server.get() && one->id == pair.listener.get()));
    EXPECT_EQ(state_of(pair.client->qp), IBV_QPS_ERR);
    EXPECT_ERRNO(rdma_disconnect(pair.client.get()), ENXIO);
    ibv_async_event fatal{};
    bool is_fatal = false;
    while (!is_fatal && ibv_get_async_event(pair.client->verbs, &fatal) == 0) {
      is_fatal = fatal.event_type == IBV_EVENT_DEVICE_FATAL;
      ibv_ack_async_event(&fatal);
    }
    EXPECT_TRUE(is_fatal);
  }
  // A new interface with the same name is a new device.
  run(MAKE_LEFT_AND_RIGHT);
  Pair again("10.5.0.1");
  EXPECT_EQ(slots_in_use(), 1);
  again.connect();
  expect_data_flows(again.client.get(), again.server.get());
}

// If lo is no device, a loopback address uses the first device.
RUN_IN_NAMESPACE(ReportsDeviceRemovalToAListenerOnLoopback) {
  setenv("VERBENA_DEVICES", "verbena_left", 1);
  const ChannelPtr channel = make_channel();
  const IdPtr listener = listen_on(channel.get(), "127.0.0.1");
  EXPECT_EQ(listener->verbs, nullptr);
  EXPECT_EQ(slots_in_use(), 1);
  run("ip link del left");
  const EventPtr event = expect_event(channel.get(), RDMA_CM_EVENT_DEVICE_REMOVAL);
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->id, listener.get());
}

// A thread that waits for a message or for an operation of a synchronous identifier.
RUN_IN_NAMESPACE(DeviceRemovalWakesWaitingThreads) {
  Pair pair("10.5.0.1");
  pair.connect();
  std::vector<char> buffer(64);
  ibv_mr* memory = rdma_reg_msgs(pair.server.get(), buffer.data(), buffer.size());
  ASSERT_NE(memory, nullptr);
  ASSERT_EQ(rdma_post_recv(pair.server.get(), nullptr, buffer.data(), buffer.size(), memory), 0);
  run("ip link del left");
  ibv_wc completion{};
  EXPECT_EQ(rdma_get_recv_comp(pair.server.get(), &completion), 1);
  EXPECT_EQ(completion.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(rdma_dereg_mr(memory), 0);

  rdma_cm_id* listener = nullptr;  // synchronous
  ASSERT_EQ(rdma_create_id(nullptr, &listener, nullptr, RDMA_PS_TCP), 0);
  const IdPtr owner(listener);
  run(MAKE_LEFT_AND_RIGHT);
  Address at = ip("10.5.0.1");
  ASSERT_EQ(rdma_bind_addr(listener, at.get()), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  run("ip link del left");
  rdma_cm_id* request = nullptr;
  EXPECT_ERRNO(rdma_get_request(listener, &request), ENODEV);
}

}  // namespace
}  // namespace verbena::test
