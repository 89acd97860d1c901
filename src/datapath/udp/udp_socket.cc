// Socket options of the UDP datapath, each with the reason why it is set.
#include "datapath/udp/udp_socket.h"

#include <linux/errqueue.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "wire/icrc.h"

#ifndef UDP_NO_CHECK6_RX
#define UDP_NO_CHECK6_RX 102
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace verbena::datapath {
namespace {

constexpr uint16_t kFirstSourcePort = 0xC000;
constexpr uint32_t kSourcePorts = 0x4000;
constexpr uint32_t kUdpIpv4Overhead = 28;
constexpr uint32_t kUdpIpv6Overhead = 48;
constexpr uint32_t kLargestIpv4Packet = 65535;

bool set(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

// The kernel caps this at net.core.*mem_max without an error. Root could force more, but then it
// would run under other conditions than everybody else.
void set_buffer(int fd, int option, uint32_t bytes) {
  set(fd, SOL_SOCKET, option, static_cast<int>(bytes < 0x40000000u ? bytes : 0x40000000u));
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
  set(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  set_buffer(fd.get(), SO_RCVBUF, options.receive_buffer_bytes);
  // Hardware and the kernel's Soft-RoCE send UDP checksum 0, which IPv6 would drop.
  if (!address.gid.is_ipv4()) set(fd.get(), IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
  set(fd.get(), IPPROTO_UDP, UDP_GRO, 1);
  // Last: from the moment it is bound, packets arrive.
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
  return ::setsockopt(fd, level, MCAST_JOIN_GROUP, &request, sizeof request) == 0;
}

}  // namespace

Result<os::UniqueFd> open_group_socket(const host::LocalAddress& address, uint32_t interface_index,
                                       const UdpOptions& options) {
  const bool v4 = address.gid.is_ipv4();
  os::UniqueFd fd = host::open_udp(address);
  if (!fd.valid()) return Error{errno, "cannot open a UDP socket"};
  set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  set(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  set_buffer(fd.get(), SO_RCVBUF, options.receive_buffer_bytes);
  if (!v4) set(fd.get(), IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
  // What other sockets joined on other interfaces is not for us.
  set(fd.get(), v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MULTICAST_ALL : IPV6_MULTICAST_ALL, 0);
  if (!join_group(fd.get(), address, interface_index)) {
    return Error{errno == ENOBUFS ? ENOMEM : errno,
                 "the kernel does not let us join the group on this interface (net.ipv4."
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
    return ::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &request, sizeof request) == 0 &&
           set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
  }
  return set(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(interface_index)) &&
         set(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
}

void report_ip_headers(int fd, const host::LocalAddress& address) {
  if (address.gid.is_ipv4()) {
    set(fd, IPPROTO_IP, IP_RECVTOS, 1);
    set(fd, IPPROTO_IP, IP_RECVTTL, 1);
  } else {
    set(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    set(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
  }
}

void set_ip_headers(int fd, const host::LocalAddress& address, uint8_t traffic_class,
                    uint8_t hop_limit) {
  const bool v4 = address.gid.is_ipv4();
  set(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, traffic_class);
  set(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TTL : IPV6_UNICAST_HOPS, hop_limit);
  set(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MULTICAST_TTL : IPV6_MULTICAST_HOPS, hop_limit);
}

void follow(GroSwitch::Change change, int fd) {
  using enum GroSwitch::Change;
  if (change != None) set(fd, IPPROTO_UDP, UDP_GRO, change == ToTrains ? 1 : 0);
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
  set(fd.get(), SOL_SOCKET, SO_RCVBUF, 0);  // nothing is ever read here
  // Never fragment, and (unconnected as the socket is) IPv4 id 0, counting up within a GSO send.
  if (address.gid.is_ipv4()) {
    set(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  } else {
    set(fd.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
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
  constexpr int kBytes = 16384;  // for some of them; a send socket has none for anything else
  if (on) set(fd, SOL_SOCKET, SO_RCVBUF, kBytes);
  const bool v4 = address.gid.is_ipv4();
  set(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_RECVERR : IPV6_RECVERR, on ? 1 : 0);
}

void cut_sends(SendSocket& socket, uint16_t bytes) {
  if (set(socket.fd.get(), IPPROTO_UDP, UDP_SEGMENT, bytes)) socket.packet_payload_bytes = bytes;
}

std::optional<UnreachableHost> take_unreachable_host(int fd) {
  for (;;) {
    UnreachableHost absent;
    iovec packet{absent.packet.data(), absent.packet.size()};
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
    absent.bytes = static_cast<size_t>(bytes);
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      const bool told = (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
                        (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR);
      if (!told) continue;
      sock_extended_err error;
      std::memcpy(&error, CMSG_DATA(c), sizeof error);
      const auto why = static_cast<int>(error.ee_errno);
      if ((why == ECONNREFUSED || why == EHOSTUNREACH) &&
          host::SocketAddress::port_of(to) == wire::kRoceUdpPort) {
        absent.host = host::SocketAddress::gid_of(to);
        absent.error = why;
        return absent;
      }
    }
  }
}

namespace {

// Of a connected socket; -1: not told.
int path_mtu(int fd, bool v4) {
  int mtu = -1;
  socklen_t bytes = sizeof mtu;
  const int level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
  return ::getsockopt(fd, level, v4 ? IP_MTU : IPV6_MTU, &mtu, &bytes) == 0 ? mtu : -1;
}

// Stand-ins for the kernel, in sandboxes and emulators, know at least this.
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
  if (mtu < 0) return Error{errno, "the kernel tells neither the path's MTU nor the interface's"};
  const uint32_t overhead = v4 ? kUdpIpv4Overhead : kUdpIpv6Overhead;
  const uint32_t packet = std::min(static_cast<uint32_t>(mtu), kLargestIpv4Packet);
  return packet > overhead ? packet - overhead : 0;
}

}  // namespace verbena::datapath
