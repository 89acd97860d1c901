// Creating a TUN device in another namespace, by system calls only.
#include "tests/network/tun_device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/if_link.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace verbena::network {
namespace {

constexpr const char* kTunFile = "/dev/net/tun";
constexpr const char* kOwnNamespace = "/proc/thread-self/ns/net";
// Packets that wait to be read. They must not be dropped here but in the bottleneck's queue, even
// if the router does not run for some milliseconds.
constexpr uint32_t kUnreadPackets = 20'000;
constexpr size_t kMaxPacket = 65536;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

os::UniqueFd opened(const std::string& file, int flags) {
  os::UniqueFd fd(open(file.c_str(), flags | O_CLOEXEC));
  if (!fd.valid()) fail("cannot open " + file);
  return fd;
}

// The calling thread is in another network namespace during this object's life.
class InNamespace {
 public:
  explicit InNamespace(int namespace_fd) : own_(opened(kOwnNamespace, O_RDONLY)) {
    if (setns(namespace_fd, CLONE_NEWNET) != 0)
      throw NotPermitted(std::string("cannot enter a network namespace: ") + std::strerror(errno) +
                         "; run this in a user namespace of its own (unshare -rn)");
  }
  ~InNamespace() {
    if (setns(own_.get(), CLONE_NEWNET) != 0) std::perror("cannot return to the own namespace");
  }
  InNamespace(const InNamespace&) = delete;
  InNamespace& operator=(const InNamespace&) = delete;

 private:
  os::UniqueFd own_;
};

ifreq request_for(const std::string& name) {
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  return request;
}

os::UniqueFd create_device(const std::string& name) {
  os::UniqueFd fd(open(kTunFile, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid())
    throw NotPermitted(std::string("cannot open ") + kTunFile + ": " + std::strerror(errno) +
                       "; the administrator can permit it: chmod 666 /dev/net/tun");
  ifreq request = request_for(name);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(fd.get(), TUNSETIFF, &request) != 0) {
    if (errno == EPERM)
      throw NotPermitted("not permitted to create a TUN device in this network namespace");
    fail("cannot create the TUN device " + name);
  }
  return fd;
}

sockaddr ipv4_socket_address(in_addr_t address) {
  sockaddr_in typed{};
  typed.sin_family = AF_INET;
  typed.sin_addr.s_addr = address;
  sockaddr plain;
  std::memcpy(&plain, &typed, sizeof plain);
  return plain;
}

// The kernel gives a device with IPv6 a link-local address and solicits routers from it. Such
// packets would be counted as traffic.
void disable_link_local_address(const std::string& name) {
  const std::string file = "/proc/sys/net/ipv6/conf/" + name + "/addr_gen_mode";
  const os::UniqueFd fd(open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd.valid() && write(fd.get(), "1", 1) != 1) fail("cannot write " + file);
}

// A netlink request with one attribute.
template <typename Body, typename Value>
struct NetlinkRequest {
  nlmsghdr header{};
  Body body{};
  rtattr attribute{};
  Value value{};
};

template <typename Body, typename Value>
void request_netlink(uint16_t type, const Body& body, uint16_t attribute, const Value& value) {
  NetlinkRequest<Body, Value> request;
  static_assert(sizeof request == NLMSG_SPACE(sizeof body) + RTA_SPACE(sizeof value));
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;
  request.body = body;
  request.attribute.rta_len = RTA_LENGTH(sizeof value);
  request.attribute.rta_type = attribute;
  request.value = value;
  const os::UniqueFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (send(netlink.get(), &request, sizeof request, 0) < 0) fail("cannot send to netlink");
  struct {
    nlmsghdr header{};
    nlmsgerr result{};
  } response;
  if (recv(netlink.get(), &response, sizeof response, 0) < 0) fail("no response from netlink");
  errno = -response.result.error;
  if (errno != 0) fail("cannot set up the interface");
}

// Sets the number of packets that may wait to be read. The ioctl for it needs privileges outside of
// the own user namespace.
void set_queue_length(int index, uint32_t packets) {
  ifinfomsg interface {};
  interface.ifi_index = index;
  request_netlink(RTM_NEWLINK, interface, IFLA_TXQLEN, packets);
}

// Without duplicate address detection: the address can be used at once.
void add_ipv6_address(int index, const std::string& text) {
  in6_addr address{};
  inet_pton(AF_INET6, text.c_str(), &address);
  ifaddrmsg interface {};
  interface.ifa_family = AF_INET6;
  interface.ifa_prefixlen = 64;
  interface.ifa_flags = IFA_F_NODAD;
  interface.ifa_index = static_cast<uint32_t>(index);
  request_netlink(RTM_NEWADDR, interface, IFA_LOCAL, address);
}

void set_up(const Interface& interface) {
  const os::UniqueFd any_socket(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto call = [&](unsigned long code, ifreq request) {
    if (ioctl(any_socket.get(), code, &request) != 0) fail("cannot set up " + interface.name);
  };
  const int index = static_cast<int>(if_nametoindex(interface.name.c_str()));
  const bool has_ipv6 = access("/proc/sys/net/ipv6", F_OK) == 0;
  if (has_ipv6) disable_link_local_address(interface.name);
  set_queue_length(index, kUnreadPackets);
  ifreq request = request_for(interface.name);
  request.ifr_mtu = interface.mtu;
  call(SIOCSIFMTU, request);
  request.ifr_addr = ipv4_socket_address(inet_addr(interface.ipv4.c_str()));
  call(SIOCSIFADDR, request);
  request.ifr_netmask = ipv4_socket_address(htonl(0xFFFFFF00));
  call(SIOCSIFNETMASK, request);
  request.ifr_flags = IFF_UP | IFF_RUNNING | IFF_NOARP | IFF_POINTOPOINT;
  call(SIOCSIFFLAGS, request);
  if (has_ipv6) add_ipv6_address(index, interface.ipv6);
}

}  // namespace

TunDevice::TunDevice(const std::string& namespace_file, const Interface& interface)
    : namespace_(opened(namespace_file, O_RDONLY)), name_(interface.name) {
  const InNamespace there(namespace_.get());
  fd_ = create_device(name_);
  set_up(interface);
}

std::span<const uint8_t> TunDevice::read() {
  thread_local std::array<uint8_t, kMaxPacket> buffer;
  const ssize_t bytes = ::read(fd_.get(), buffer.data(), buffer.size());
  return {buffer.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0};
}

bool TunDevice::write(std::span<const uint8_t> packet) {
  return ::write(fd_.get(), packet.data(), packet.size()) == static_cast<ssize_t>(packet.size());
}

uint64_t TunDevice::unread_drops() const {
  const InNamespace there(namespace_.get());
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail("getifaddrs");
  uint64_t drops = 0;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_name == name_ && each->ifa_addr && each->ifa_addr->sa_family == AF_PACKET)
      drops = static_cast<const rtnl_link_stats*>(each->ifa_data)->tx_dropped;
  }
  freeifaddrs(list);
  return drops;
}

}  // namespace verbena::network
