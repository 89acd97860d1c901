// Several network interfaces, some of which come and go: which devices are used for what. Each test
// has a network namespace of its own.
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

// Two Ethernet interfaces besides loopback: left, 10.5.0.1, and right, 10.5.0.2.
constexpr const char* kNamespace =
    "unshare -rn sh -c 'ip link set lo up; ip link add left type veth peer name right; "
    "ip addr add 10.5.0.1/24 dev left; ip addr add 10.5.0.2/24 dev right; "
    "ip link set left up; ip link set right up; exec \"$0\" \"$@\"'";

bool may_make_interfaces() {
  return std::system("unshare -rn ip link add left type veth peer name right >/dev/null 2>&1") == 0;
}

#define RUN_IN_NAMESPACE(name)                                                            \
  TEST(Interfaces, name) {                                                                \
    if (!may_make_interfaces()) GTEST_SKIP() << "network interfaces cannot be made here"; \
    EXPECT_TRUE(passes_in_new_process("InTheirNamespace.DISABLED_" #name, kNamespace));   \
  }                                                                                       \
  TEST(InTheirNamespace, DISABLED_##name)

// How many devices the processes of this namespace have open.
int slots_taken() {
  std::ifstream sockets("/proc/net/unix");
  int count = 0;
  for (std::string line; std::getline(sockets, line);) {
    if (line.find("/slot/") != std::string::npos) ++count;
  }
  return count;
}

void take_all_slots() {
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

RUN_IN_NAMESPACE(AnAddressTakesOneDevice) {
  const ChannelPtr channel = make_channel();
  const IdPtr client = resolve(channel.get(), "127.0.0.1", 7);
  EXPECT_EQ(slots_taken(), 1);
  const IdPtr server = listen_on(channel.get(), "10.5.0.1");
  EXPECT_EQ(slots_taken(), 2);
  EXPECT_STREQ(ibv_get_device_name(server->verbs->device), "verbena_left");
  const IdPtr everywhere = listen_on(channel.get(), "0.0.0.0");
  EXPECT_EQ(slots_taken(), 3);
}

RUN_IN_NAMESPACE(WithoutSlotsDevicesAreBusyAndNotAbsent) {
  take_all_slots();
  const ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  Address exact = ip("127.0.0.1");
  Address any = ip("0.0.0.0");
  EXPECT_ERRNO(rdma_bind_addr(id.get(), exact.get()), EBUSY);
  EXPECT_ERRNO(rdma_bind_addr(id.get(), any.get()), EBUSY);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, exact.get(), 1000), 0);
  expect_event(channel.get(), RDMA_CM_EVENT_ADDR_ERROR, -EBUSY);
}

}  // namespace
}  // namespace verbena::test
