// Socket options of the UDP datapath, each with its reason.
#include "datapath/udp/udp_socket.h"

#include <linux/errqueue.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "os/socket_options.h"
#include "wire/icrc.h"

namespace verbena::datapath {
namespace {

constexpr uint16_t kFirstSourcePort = 0xC000;
constexpr uint32_t kSourcePorts = 0x4000;
constexpr uint32_t kUdpIpv4Overhead = 28;
constexpr uint32_t kUdpIpv6Overhead = 48;
constexpr uint32_t kLargestIpv4Packet = 65535;

// The kernel caps this at net.core.*mem_max without an error. Root could force more, but would then
// run under other conditions than all other users.
void set_buffer(int fd, int option, uint32_t bytes) {
  os::set_option(fd, SOL_SOCKET, option,
                 static_cast<int>(bytes < 0x40000000u ? bytes : 0x40000000u));
}

Error bind_error(int code) {
  switch (code) {
    case EADDRINUSE:
      return {EADDRINUSE,
              "UDP port 4791 on this address is held by another user's process, by the kernel's "
              "rdma_rxe, or by another program: stop it (rdma link delete, modprobe -r rdma_rxe), "
              "run as the same user, or use another address"};
    case EADDRNOTAVAIL:
      return {EADDRNOTAVAIL, "the GID's address is not (or no longer) an address of this host"};
    default:
      return {code, "cannot bind a UDP socket to the GID's address"};
  }
}

}  // namespace

Result<os::UniqueFd> open_receive_socket(const host::LocalAddress& address,
                                         const UdpOptions& options) {
  os::UniqueFd fd = host::open_udp(address);
  if (!fd.valid()) return Error{errno, "cannot open a UDP socket"};
  os::set_option(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  set_buffer(fd.get(), SO_RCVBUF, options.receive_buffer_bytes);
  // Hardware and the kernel's Soft-RoCE send UDP checksum 0, which IPv6 would drop.
  if (!address.gid.is_ipv4()) os::set_option(fd.get(), IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
  os::set_option(fd.get(), IPPROTO_UDP, UDP_GRO, 1);
  // The bind comes last, because the socket receives packets from then on.
  const host::SocketAddress a = host::SocketAddress::of(address, wire::kRoceUdpPort);
  if (::bind(fd.get(), a.get(), a.bytes) != 0) return bind_error(errno);
  return fd;
}

namespace {

bool join_group(int fd, const host::LocalAddress& address, uint32_t interface_index) {
  group_req request{};
  request.gr_interface = interface_index;
  const host::SocketAddress group = host::SocketAddress::of(address, 0);
  request.gr_group = group.storage;
  const int level = address.gid.is_ipv4() ? IPPROTO_IP : IPPROTO_IPV6;
  return os::set_option(fd, level, MCAST_JOIN_GROUP, request);
}

}  // namespace

Result<os::UniqueFd> open_group_socket(const host::LocalAddress& address, uint32_t interface_index,
                                       const UdpOptions& options) {
  const bool v4 = address.gid.is_ipv4();
  os::UniqueFd fd = host::open_udp(address);
  if (!fd.valid()) return Error{errno, "cannot open a UDP socket"};
  os::set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  os::set_option(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  set_buffer(fd.get(), SO_RCVBUF, options.receive_buffer_bytes);
  if (!v4) os::set_option(fd.get(), IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
  // Do not receive packets of groups that other sockets joined on other interfaces.
  os::set_option(fd.get(), v4 ? IPPROTO_IP : IPPROTO_IPV6,
                 v4 ? IP_MULTICAST_ALL : IPV6_MULTICAST_ALL, 0);
  if (!join_group(fd.get(), address, interface_index)) {
    return Error{errno == ENOBUFS ? ENOMEM : errno,
                 "the kernel refuses to join the group on this interface (net.ipv4."
                 "igmp_max_memberships?)"};
  }
  const host::SocketAddress a = host::SocketAddress::of(address, wire::kRoceUdpPort);
  if (::bind(fd.get(), a.get(), a.bytes) != 0) return bind_error(errno);
  return fd;
}

bool send_groups_through(int fd, const host::LocalAddress& address, uint32_t interface_index) {
  if (address.gid.is_ipv4()) {
    ip_mreqn request{};
    request.imr_ifindex = static_cast<int>(interface_index);
    return os::set_option(fd, IPPROTO_IP, IP_MULTICAST_IF, request) &&
           os::set_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
  }
  return os::set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(interface_index)) &&
         os::set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
}

void report_traffic_class(int fd, const host::LocalAddress& address) {
  const bool v4 = address.gid.is_ipv4();
  os::set_option(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_RECVTOS : IPV6_RECVTCLASS, 1);
}

void report_hop_limit(int fd, const host::LocalAddress& address) {
  const bool v4 = address.gid.is_ipv4();
  os::set_option(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_RECVTTL : IPV6_RECVHOPLIMIT, 1);
}

void set_traffic_class(int fd, const host::LocalAddress& address, uint8_t traffic_class) {
  constexpr int kHighestUnprivileged = 6;
  const bool v4 = address.gid.is_ipv4();
  os::set_option(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, traffic_class);
  // After IP_TOS, which sets the priority as well, to a value of its own.
  os::set_option(fd, SOL_SOCKET, SO_PRIORITY, std::min(traffic_class >> 5, kHighestUnprivileged));
}

void set_hop_limit(int fd, const host::LocalAddress& address, uint8_t hop_limit) {
  const bool v4 = address.gid.is_ipv4();
  os::set_option(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TTL : IPV6_UNICAST_HOPS, hop_limit);
  os::set_option(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MULTICAST_TTL : IPV6_MULTICAST_HOPS,
                 hop_limit);
}

void apply(GroSwitch::Change change, int fd) {
  using enum GroSwitch::Change;
  if (change != None) os::set_option(fd, IPPROTO_UDP, UDP_GRO, change == EnableGro ? 1 : 0);
}

uint32_t kernel_drops(int fd) {
  uint32_t info[SK_MEMINFO_VARS] = {};
  socklen_t bytes = sizeof info;
  return ::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &bytes) == 0 ? info[SK_MEMINFO_DROPS] : 0;
}

Result<SendSocket> open_send_socket(const host::LocalAddress& address, const UdpOptions& options,
                                    uint8_t slot) {
  os::UniqueFd fd = host::open_udp(address);
  if (!fd.valid()) return Error{errno, "cannot open a UDP socket"};
  set_buffer(fd.get(), SO_SNDBUF, options.send_buffer_bytes);
  os::set_option(fd.get(), SOL_SOCKET, SO_RCVBUF, 0);  // this socket is never read
  // Disables fragmentation. On an unconnected socket the IPv4 ID is then 0, and counts up within a
  // GSO batch.
  if (address.gid.is_ipv4()) {
    os::set_option(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  } else {
    os::set_option(fd.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
  }
  const uint32_t start = static_cast<uint32_t>(::getpid()) * 2654435761u + slot * 97u;
  for (uint32_t i = 0; i < kSourcePorts; ++i) {
    const auto port = static_cast<uint16_t>(kFirstSourcePort + (start + i) % kSourcePorts);
    const host::SocketAddress a = host::SocketAddress::of(address, port);
    if (::bind(fd.get(), a.get(), a.bytes) == 0) return SendSocket{std::move(fd), port};
    if (errno != EADDRINUSE) return bind_error(errno);
  }
  return Error{EADDRINUSE, "all UDP ports from 49152 to 65535 are taken on this address"};
}

void report_unreachable_hosts(int fd, const host::LocalAddress& address, bool on) {
  constexpr int kBytes = 16384;  // the error queue uses the receive buffer, which is otherwise 0
  if (on) os::set_option(fd, SOL_SOCKET, SO_RCVBUF, kBytes);
  const bool v4 = address.gid.is_ipv4();
  os::set_option(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_RECVERR : IPV6_RECVERR, on ? 1 : 0);
}

void set_segment_size(SendSocket& socket, uint16_t bytes) {
  if (os::set_option(socket.fd.get(), IPPROTO_UDP, UDP_SEGMENT, bytes))
    socket.segment_bytes = bytes;
}

std::optional<UnreachableHost> take_unreachable_host(int fd) {
  for (;;) {
    UnreachableHost unreachable;
    iovec packet{unreachable.packet.data(), unreachable.packet.size()};
    sockaddr_storage to{};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(sock_extended_err) + sizeof to)];
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    message.msg_iov = &packet;
    message.msg_iovlen = 1;
    const long bytes = ::syscall(SYS_recvmsg, fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT);
    if (bytes < 0) return std::nullopt;
    unreachable.bytes = static_cast<size_t>(bytes);
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      const bool is_error = (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
                            (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR);
      if (!is_error) continue;
      sock_extended_err error;
      std::memcpy(&error, CMSG_DATA(c), sizeof error);
      const auto reason = static_cast<int>(error.ee_errno);
      if ((reason == ECONNREFUSED || reason == EHOSTUNREACH) &&
          host::SocketAddress::port_of(to) == wire::kRoceUdpPort) {
        unreachable.host = host::SocketAddress::gid_of(to);
        unreachable.error = reason;
        return unreachable;
      }
    }
  }
}

namespace {

// The path MTU of a connected socket; -1 if the kernel does not report it.
int path_mtu(int fd, bool v4) {
  int mtu = -1;
  socklen_t bytes = sizeof mtu;
  const int level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
  return ::getsockopt(fd, level, v4 ? IP_MTU : IPV6_MTU, &mtu, &bytes) == 0 ? mtu : -1;
}

// Sandboxes and emulators in place of the kernel support at least this query.
int interface_mtu(int fd, uint32_t interface_index) {
  ifreq request{};
  if (::if_indextoname(interface_index, request.ifr_name) == nullptr) return -1;
  return ::ioctl(fd, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : -1;
}

}  // namespace

Result<uint32_t> largest_datagram(const host::LocalAddress& source,
                                  const host::LocalAddress& destination, uint32_t interface_index) {
  os::UniqueFd fd = host::open_udp(source);
  if (!fd.valid()) return Error{errno, "cannot open a UDP socket"};
  const host::SocketAddress from = host::SocketAddress::of(source, 0);
  const host::SocketAddress to = host::SocketAddress::of(destination, wire::kRoceUdpPort);
  if (::bind(fd.get(), from.get(), from.bytes) != 0) return bind_error(errno);
  if (destination.gid.is_multicast()) send_groups_through(fd.get(), source, interface_index);
  if (::connect(fd.get(), to.get(), to.bytes) != 0) {
    return Error{errno, "there is no route from the GID's address to the peer's address"};
  }
  const bool v4 = source.gid.is_ipv4();
  int mtu = path_mtu(fd.get(), v4);
  if (mtu < 0) mtu = interface_mtu(fd.get(), interface_index);
  if (mtu < 0) return Error{errno, "the kernel reports neither the path's MTU nor the interface's"};
  const uint32_t overhead = v4 ? kUdpIpv4Overhead : kUdpIpv6Overhead;
  const uint32_t packet = std::min(static_cast<uint32_t>(mtu), kLargestIpv4Packet);
  return packet > overhead ? packet - overhead : 0;
}

}  // namespace verbena::datapath
