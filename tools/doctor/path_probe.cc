// Probes read ICMP errors from the socket's error queue, which includes the address of the error's
// sender.
#include "tools/doctor/path_probe.h"

#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <vector>

#include "datapath/udp/udp_socket.h"
#include "runtime/failure_text.h"
#include "runtime/nic.h"
#include "runtime/port_state.h"

namespace verbena::tool {
namespace {

using host::SocketAddress;
using os::UniqueFd;
using Kind = ProbeResult::Kind;

constexpr Duration kBetweenDatagrams = milliseconds(400);

bool is_prohibition(const sock_extended_err& error) {
  if (error.ee_origin == SO_EE_ORIGIN_ICMP && error.ee_type == ICMP_DEST_UNREACH) {
    return error.ee_code == ICMP_NET_ANO || error.ee_code == ICMP_HOST_ANO ||
           error.ee_code == ICMP_PKT_FILTERED;
  }
  return error.ee_origin == SO_EE_ORIGIN_ICMP6 && error.ee_type == ICMP6_DST_UNREACH &&
         error.ee_code == ICMP6_DST_UNREACH_ADMIN;
}

Kind kind_of(const sock_extended_err& error) {
  if (is_prohibition(error)) return Kind::Prohibited;
  switch (error.ee_errno) {
    case ECONNREFUSED:
      return Kind::Refused;
    case EMSGSIZE:
      return Kind::TooLarge;
    default:
      return Kind::Unreachable;
  }
}

std::optional<ProbeResult> read_error(int fd) {
  std::array<std::byte, 128> echoed;
  alignas(cmsghdr) std::array<std::byte, 512> control;
  iovec part{echoed.data(), echoed.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return std::nullopt;
  for (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(c))) {
    const bool v4 = c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR;
    const bool v6 = c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR;
    if (!v4 && !v6) continue;
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(c), sizeof error);
    ProbeResult result;
    result.kind = kind_of(error);
    if (result.kind == Kind::TooLarge) result.mtu = error.ee_info;
    if (error.ee_origin != SO_EE_ORIGIN_LOCAL) {  // the sender's address follows
      sockaddr_storage sender{};
      std::memcpy(&sender, CMSG_DATA(c) + sizeof error,
                  std::min(sizeof sender, c->cmsg_len - CMSG_LEN(sizeof error)));
      result.sender = runtime::to_text(SocketAddress::gid_of(sender));
    }
    return result;
  }
  return std::nullopt;
}

UniqueFd open_probe(const Path& path, uint16_t port) {
  const bool v4 = path.to.gid.is_ipv4();
  UniqueFd fd(::socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  static_assert(IP_PMTUDISC_DO == IPV6_PMTUDISC_DO);
  const int never_fragment = IP_PMTUDISC_DO;
  const int level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
  const SocketAddress from = SocketAddress::of(path.from, 0);
  const SocketAddress to = SocketAddress::of(path.to, port);
  if (!fd.valid() ||
      ::setsockopt(fd.get(), level, v4 ? IP_RECVERR : IPV6_RECVERR, &on, sizeof on) != 0 ||
      ::setsockopt(fd.get(), level, v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, &never_fragment,
                   sizeof never_fragment) != 0 ||
      ::bind(fd.get(), from.get(), from.bytes) != 0 ||
      ::connect(fd.get(), to.get(), to.bytes) != 0) {
    return {};
  }
  return fd;
}

uint32_t headers_of(const Path& path) { return (path.to.gid.is_ipv4() ? 20 : 40) + 8; }

}  // namespace

uint16_t closed_port() { return static_cast<uint16_t>(33434 + runtime::now().ns % 100); }

ProbeResult probe(const Path& path, uint16_t port, uint32_t packet_bytes, Duration timeout) {
  const UniqueFd fd = open_probe(path, port);
  if (!fd.valid()) return {Kind::Unreachable, 0, {}, {}};
  const std::vector<std::byte> payload(packet_bytes - std::min(packet_bytes, headers_of(path)));
  const Instant until = runtime::now() + timeout;
  for (Instant at = runtime::now(); at < until; at = runtime::now()) {
    // The error queue also gets a failure of send(), except if a firewall rejected the packet.
    const bool sent = ::send(fd.get(), payload.data(), payload.size(), MSG_DONTWAIT) >= 0;
    if (!sent && errno == EPERM) return {Kind::Forbidden, 0, {}, {}};
    pollfd wait{fd.get(), 0, 0};  // POLLERR is always reported
    const Duration pause = std::min(kBetweenDatagrams, until - at);
    (void)::poll(&wait, 1, static_cast<int>(pause.ns / 1'000'000));
    if (auto result = read_error(fd.get())) {
      result->took = runtime::now() - at;
      return *result;
    }
  }
  return {};
}

PathMtu find_path_mtu(const Path& path, uint32_t interface_index) {
  constexpr Duration kTimeout = milliseconds(1000);
  auto known = datapath::largest_datagram(path.from, path.to, interface_index);
  if (!known.ok()) return {};
  const uint16_t port = closed_port();
  uint32_t size = known.value() + headers_of(path);
  ProbeResult result;
  for (int hops = 0; hops < 8; ++hops) {
    result = probe(path, port, size, kTimeout);
    if (result.kind != Kind::TooLarge || result.mtu >= size || result.mtu == 0) break;
    size = result.mtu;
  }
  if (result.kind == Kind::Refused) return {size, 0};
  using wire::Mtu;
  for (const Mtu mtu : {Mtu::k4096, Mtu::k2048, Mtu::k1024, Mtu::k512, Mtu::k256}) {
    const uint32_t smaller = runtime::interface_mtu_for(mtu);
    if (smaller >= size) continue;
    if (probe(path, port, smaller, kTimeout).kind == Kind::Refused) return {smaller, size};
  }
  return {};
}

}  // namespace verbena::tool
