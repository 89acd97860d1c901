// Device discovery with real interfaces. Each test has its own network namespace, needs no
// privileges and does not change the machine.
#include "runtime/devices.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

namespace verbena::runtime {
namespace {

using wire::Gid;
using wire::Mtu;

constexpr int kNotPermitted = 77;

Gid gid(const char* text) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, text, &v4) == 1) return Gid::from_ipv4(&v4);
  EXPECT_EQ(::inet_pton(AF_INET6, text, &v6), 1) << text;
  return Gid::from_ipv6(&v6);
}

bool write_file(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  const bool done =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ::close(fd);
  return done;
}

bool enter_own_namespace() {
  const std::string uid = std::to_string(::getuid());
  const std::string gid_text = std::to_string(::getgid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    // The thread sanitizer has its own thread, and only root needs no user namespace.
    return ::unshare(CLONE_NEWNET) == 0;
  }
  return write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/uid_map", "0 " + uid + " 1") &&
         write_file("/proc/self/gid_map", "0 " + gid_text + " 1");
}

// Runs in a child, because a process with threads cannot enter a user namespace. Failed
// expectations are printed and become the exit status.
void in_own_namespace(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!enter_own_namespace()) ::_exit(kNotPermitted);
    body();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotPermitted) {
    GTEST_SKIP() << "cannot create a network namespace";
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "see above";
}

void ip(const std::string& arguments) {
  EXPECT_EQ(std::system(("ip " + arguments).c_str()), 0) << "ip " << arguments;
}

// The kernel reports a carrier some time after both ends of a pair are up.
void await_carrier(const std::string& interface) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
  for (int tries = 0; tries < 1000; ++tries) {
    EXPECT_EQ(::ioctl(fd, SIOCGIFFLAGS, &request), 0) << interface;
    if ((request.ifr_flags & IFF_RUNNING) != 0) break;
    ::usleep(10'000);
  }
  EXPECT_NE(request.ifr_flags & IFF_RUNNING, 0) << interface << " has no carrier";
  ::close(fd);
}

std::string names(const Discovery& found) {
  std::string all;
  for (const DeviceInfo& device : found.devices) all += (all.empty() ? "" : " ") + device.name;
  return all;
}

std::string why_not(const Discovery& found, const std::string& interface) {
  const auto entry = std::ranges::find(found.unusable, interface, &UnusableInterface::interface);
  return entry != found.unusable.end() ? entry->why : "(not listed)";
}

const DeviceInfo& device(const Discovery& found, const std::string& interface) {
  static const DeviceInfo kNothing;
  const auto entry = std::ranges::find(found.devices, interface, &DeviceInfo::interface);
  EXPECT_NE(entry, found.devices.end()) << interface;
  return entry != found.devices.end() ? *entry : kNothing;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Waits for the monitor; true if it reported a change.
bool changed_within_a_second(InterfaceMonitor& monitor) {
  pollfd wait{.fd = monitor.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&wait, 1, 1000) == 1 && monitor.drain();
}

TEST(Devices, LoopbackIsADeviceOnceItIsUp) {
  in_own_namespace([] {
    const Discovery before = discover_devices("");
    EXPECT_EQ(names(before), "");
    EXPECT_EQ(why_not(before, "lo"), "is down: ip link set lo up");

    ip("link set lo up");
    const Discovery found = discover_devices("");
    ASSERT_EQ(names(found), "verbena_lo");
    const DeviceInfo& lo = device(found, "lo");
    EXPECT_TRUE(lo.loopback);
    EXPECT_EQ(lo.interface_index, ::if_nametoindex("lo"));
    EXPECT_NE(lo.guid, 0u);
    EXPECT_EQ(lo.guid >> 56 & 3, 2u)
        << "a generated GUID is locally administered and no group address";
    EXPECT_EQ(lo.guid, device(discover_devices(""), "lo").guid) << "the same every time";
    EXPECT_TRUE(lo.port.up);
    EXPECT_EQ(lo.port.active_mtu, Mtu::k4096);
    EXPECT_LT(lo.port.speed_mbps, 10000u);
    ASSERT_FALSE(lo.port.addresses.empty());
    EXPECT_EQ(lo.port.addresses.front(), gid("127.0.0.1"));
  });
}

TEST(Devices, ListsInterfacesByIndexWithLoopbackLast) {
  in_own_namespace([] {
    ip("link set lo up");
    ip("link add v0 index 20 type veth peer name v1 index 10");
    ip("address add 192.0.2.1/24 dev v0");
    ip("address add 192.0.2.2/24 dev v1");
    ip("link set v0 up");
    ip("link set v1 up");
    for (const char* interface : {"v0", "v1"}) await_carrier(interface);
    EXPECT_EQ(names(discover_devices("")), "verbena_v1 verbena_v0 verbena_lo");
  });
}

TEST(Devices, ReadsThePropertiesOfAnEthernetInterface) {
  in_own_namespace([] {
    ip("link add v0 address 02:11:22:33:44:55 mtu 1500 type veth peer name v1");
    ip("link set v1 up");
    ip("link set v0 up");
    await_carrier("v0");
    ip("address add 192.0.2.1/24 dev v0");
    const DeviceInfo v0 = device(discover_devices(""), "v0");
    EXPECT_EQ(v0.guid, 0x001122FFFE334455u);
    EXPECT_EQ(v0.port.interface_mtu, 1500u);
    EXPECT_EQ(v0.port.active_mtu, Mtu::k1024);
    EXPECT_EQ(v0.port.speed_mbps, 10000u);
    EXPECT_FALSE(v0.loopback);
    EXPECT_TRUE(v0.port.up);
    ip("link set v0 mtu 4500");
    const auto port = read_port_state(v0.interface_index);
    ASSERT_TRUE(port.has_value());
    EXPECT_EQ(port->active_mtu, Mtu::k4096);
  });
}

TEST(Devices, InterfacesWithTheSameMacAddressHaveDifferentGuids) {
  in_own_namespace([] {
    ip("link add v0 address 02:11:22:33:44:55 type veth peer name v1 address 02:11:22:33:44:55");
    for (const char* interface : {"v0", "v1"}) ip(std::string("link set ") + interface + " up");
    ip("address add 192.0.2.1/24 dev v0");
    ip("address add 192.0.2.2/24 dev v1");
    for (const char* interface : {"v0", "v1"}) await_carrier(interface);
    const Discovery found = discover_devices("");
    EXPECT_NE(device(found, "v0").guid, device(found, "v1").guid);
  });
}

TEST(Devices, StatesWhyAnInterfaceIsUnusable) {
  in_own_namespace([] {
    ip("link add v0 type veth peer name v1");
    EXPECT_TRUE(contains(why_not(discover_devices(""), "v0"), "is down"));
    ip("link set v0 addrgenmode none");
    ip("link set v0 up");
    EXPECT_TRUE(contains(why_not(discover_devices(""), "v0"), "has no IP address"));
    ip("address add 192.0.2.1/24 dev v0");
    EXPECT_TRUE(contains(why_not(discover_devices(""), "v0"), "has no carrier"));
    const Discovery named = discover_devices("v0");
    EXPECT_EQ(names(named), "verbena_v0");
    EXPECT_FALSE(device(named, "v0").port.up);
    ip("link set v1 up");
    await_carrier("v0");
    EXPECT_EQ(names(discover_devices("")), "verbena_v0");
  });
}

TEST(Devices, IgnoresTentativeAddresses) {
  in_own_namespace([] {
    ip("link add v0 type veth peer name v1");
    ip("link set v0 addrgenmode none");
    ip("link set v1 addrgenmode none");
    ip("link set v1 up");
    ip("link set v0 up");
    await_carrier("v0");
    ip("address add 2001:db8::1/64 dev v0");  // duplicate address detection takes a second or more
    EXPECT_TRUE(contains(why_not(discover_devices(""), "v0"), "tentative"));
    ip("address add 2001:db8::2/64 dev v0 nodad");
    EXPECT_EQ(device(discover_devices(""), "v0").port.addresses,
              std::vector<Gid>{gid("2001:db8::2")});
  });
}

TEST(Devices, SelectsAndOrdersDevicesByTheVariable) {
  in_own_namespace([] {
    ip("link set lo up");
    ip("link add v0 type veth peer name v1");
    for (const char* interface : {"v0", "v1"}) {
      ip(std::string("link set ") + interface + " up");
      ip(std::string("address add 192.0.2.") + (interface[1] == '0' ? "1" : "2") + "/24 dev " +
         interface);
    }
    for (const char* interface : {"v0", "v1"}) await_carrier(interface);
    EXPECT_EQ(names(discover_devices("lo,v0")), "verbena_lo verbena_v0");
    EXPECT_EQ(names(discover_devices("verbena_v1, verbena_lo")), "verbena_v1 verbena_lo");
    EXPECT_EQ(names(discover_devices("v1,verbena_v1,v1")), "verbena_v1");
    EXPECT_EQ(names(discover_devices("none")), "");
    EXPECT_EQ(names(discover_devices(" ")), names(discover_devices("")));
    const Discovery found = discover_devices("lo,v7");
    EXPECT_EQ(names(found), "verbena_lo");
    EXPECT_EQ(why_not(found, "v0"), "not selected by VERBENA_DEVICES");
    EXPECT_TRUE(contains(why_not(found, "v7"), "no such interface"));
  });
}

TEST(Devices, ARemovedInterfaceHasNoState) {
  in_own_namespace([] {
    ip("link add v0 type veth peer name v1");
    const uint32_t index = ::if_nametoindex("v0");
    EXPECT_TRUE(read_port_state(index).has_value());
    ip("link delete v0");
    EXPECT_FALSE(read_port_state(index).has_value());
  });
}

TEST(Devices, ReadsMoreAddressesThanFitIntoOneNetlinkMessage) {
  in_own_namespace([] {
    ip("link add v0 type veth peer name v1");
    ip("link set v1 up");
    ip("link set v0 up");
    await_carrier("v0");
    std::string batch;
    for (int i = 0; i < 2000; ++i) {
      batch += "address add 10.0." + std::to_string(i / 250) + "." + std::to_string(1 + i % 250) +
               "/16 dev v0\n";
    }
    FILE* pipe = ::popen("ip -batch -", "w");
    ASSERT_NE(pipe, nullptr);
    std::fputs(batch.c_str(), pipe);
    EXPECT_EQ(::pclose(pipe), 0);
    EXPECT_GE(device(discover_devices(""), "v0").port.addresses.size(), 2000u);
  });
}

TEST(InterfaceMonitor, ReportsAddressChangesAndTheGidTableKeepsIndexes) {
  in_own_namespace([] {
    ip("link set lo up");
    InterfaceMonitor monitor;
    ASSERT_GE(monitor.fd(), 0);
    EXPECT_EQ(::fcntl(monitor.fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EXPECT_FALSE(monitor.drain()) << "nothing has happened";

    const uint32_t index = ::if_nametoindex("lo");
    GidTable table;
    table.update(read_port_state(index)->addresses);
    ASSERT_EQ(table.at(0), gid("127.0.0.1"));
    const size_t before = table.size();

    ip("address add 192.0.2.1/32 dev lo");
    ip("address add 192.0.2.2/32 dev lo");
    EXPECT_TRUE(changed_within_a_second(monitor));
    EXPECT_TRUE(table.update(read_port_state(index)->addresses));
    EXPECT_EQ(table.at(0), gid("127.0.0.1"));
    EXPECT_EQ(table.at(before), gid("192.0.2.1"));
    EXPECT_EQ(table.at(before + 1), gid("192.0.2.2"));

    ip("address delete 192.0.2.1/32 dev lo");
    EXPECT_TRUE(changed_within_a_second(monitor));
    EXPECT_TRUE(table.update(read_port_state(index)->addresses));
    EXPECT_TRUE(table.at(before).is_zero());
    EXPECT_EQ(table.at(before + 1), gid("192.0.2.2"));
  });
}

TEST(InterfaceMonitor, ReportsLinkChanges) {
  in_own_namespace([] {
    InterfaceMonitor monitor;
    ip("link set lo up");
    EXPECT_TRUE(changed_within_a_second(monitor));
    EXPECT_FALSE(monitor.drain()) << "everything was read";
    ip("link set lo down");
    EXPECT_TRUE(changed_within_a_second(monitor));
    EXPECT_FALSE(read_port_state(::if_nametoindex("lo"))->up);
  });
}

TEST(InterfaceMonitor, WorksAfterItsBufferOverflows) {
  in_own_namespace([] {
    ip("link set lo up");
    InterfaceMonitor monitor;
    const int little = 1;
    ASSERT_EQ(::setsockopt(monitor.fd(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little), 0);
    for (int i = 1; i < 40; ++i) ip("address add 192.0.2." + std::to_string(i) + "/32 dev lo");
    EXPECT_TRUE(changed_within_a_second(monitor));
    while (monitor.drain()) {
    }
    ip("address delete 192.0.2.1/32 dev lo");
    EXPECT_TRUE(changed_within_a_second(monitor)) << "the monitor works after lost messages";
  });
}

}  // namespace
}  // namespace verbena::runtime
