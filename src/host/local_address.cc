// Conversions of addresses, and socket calls that need only an address.
#include "host/local_address.h"

#include <cstring>

#include "os/coarse_clock.h"
#include "os/control_message.h"
#include "os/plain_socket.h"
#include "os/socket_options.h"

namespace verbena::host {

LocalAddress local_address(const wire::Gid& gid, uint32_t interface_index) {
  const bool scoped = !gid.is_ipv4() && (gid.is_link_local() || gid.is_multicast());
  return {gid, scoped ? interface_index : 0};
}

bool is_local(const LocalAddress& address) {
  const os::UniqueFd fd = open_udp(address);
  const SocketAddress a = SocketAddress::of(address, 0);
  return fd.valid() && ::bind(fd.get(), a.get(), a.bytes) == 0;
}

bool was_local_just_now(const LocalAddress& address) {
  struct Answer {
    LocalAddress address;
    Instant until;
    bool is_local;
  };
  constexpr Duration kValid = milliseconds(10);
  static thread_local Answer last{};
  const Instant now = os::coarse_now();
  if (last.address != address || now >= last.until) {
    last = {address, now + kValid, host::is_local(address)};
  }
  return last.is_local;
}

SocketAddress SocketAddress::of(const LocalAddress& address, uint16_t port) {
  SocketAddress a;
  if (address.gid.is_ipv4()) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, address.gid.bytes.data() + 12, 4);
    std::memcpy(&a.storage, &in, sizeof in);
    a.bytes = sizeof in;
  } else {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(port);
    std::memcpy(&in.sin6_addr, address.gid.bytes.data(), 16);
    in.sin6_scope_id = address.scope;
    std::memcpy(&a.storage, &in, sizeof in);
    a.bytes = sizeof in;
  }
  return a;
}

wire::Gid SocketAddress::gid_of(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET) {
    return wire::Gid::from_ipv4(&reinterpret_cast<const sockaddr_in&>(from).sin_addr);
  }
  return wire::Gid::from_ipv6(&reinterpret_cast<const sockaddr_in6&>(from).sin6_addr);
}

uint16_t SocketAddress::port_of(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(from).sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6&>(from).sin6_port);
}

os::UniqueFd open_udp(const LocalAddress& address) {
  const bool v4 = address.gid.is_ipv4();
  os::UniqueFd fd =
      os::plain_socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK);
  // One family per socket, so that a process of the other family does not block the port.
  if (fd.valid() && !v4) os::set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  return fd;
}

bool send_one(int fd, const SocketAddress& to, std::span<const std::byte> bytes) {
  int segment_bytes = 0;
  socklen_t size = sizeof segment_bytes;
  const bool is_segmented =
      ::getsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment_bytes, &size) == 0 && segment_bytes > 0 &&
      bytes.size() > static_cast<size_t>(segment_bytes);
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(uint16_t))];
  msghdr message{};
  message.msg_name = const_cast<sockaddr_storage*>(&to.storage);
  message.msg_namelen = to.bytes;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (is_segmented) {
    message.msg_controllen = os::put_control(control, IPPROTO_UDP, UDP_SEGMENT, uint16_t{0});
    message.msg_control = control;
  }
  const auto try_send = [&] { return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0; };
  const bool sent = try_send();
  return sent || try_send();
}

}  // namespace verbena::host
