// SocketAddress: an IPv4 or IPv6 address with its port, as a value.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace verbena::rsocket {

class SocketAddress {
 public:
  SocketAddress() : v6_{} {}  // AF_UNSPEC
  static SocketAddress make_v4(in_addr address, uint16_t port);
  static SocketAddress make_v6(const in6_addr& address, uint16_t port, uint32_t flowinfo);
  static SocketAddress any(int family);
  // From an application. Errors: EFAULT, EINVAL (too short) or EAFNOSUPPORT.
  static Result<SocketAddress> from(const sockaddr* address, socklen_t length);
  // From a library, without a length. AF_UNSPEC if it is not an IP address.
  static SocketAddress trusted(const sockaddr* address);

  int family() const { return any_.sa_family; }
  uint16_t port() const { return ntohs(v4_.sin_port); }  // at the same offset in both
  void set_port(uint16_t port) { v4_.sin_port = htons(port); }
  const sockaddr_in& v4() const { return v4_; }
  const sockaddr_in6& v6() const { return v6_; }
  sockaddr* get() { return &any_; }
  const sockaddr* get() const { return &any_; }
  socklen_t size() const { return family() == AF_INET ? sizeof v4_ : sizeof v6_; }

  bool is_any() const;
  bool is_loopback() const;
  // Same address and port. Flow and scope do not distinguish peers.
  bool operator==(const SocketAddress& other) const;
  size_t hash() const;

  // ::ffff:1.2.3.4 and 1.2.3.4 name one host. The connection manager uses the second form; an IPv6
  // socket shows the first.
  SocketAddress unmapped() const;
  SocketAddress seen_by(int family) const;

  // As getsockname: truncates the address to the caller's buffer and reports the full length.
  void copy_to(sockaddr* to, socklen_t* length) const;

 private:
  // NOLINTBEGIN(readability-identifier-naming): members of this class, though a union's are public
  union {
    sockaddr any_;
    sockaddr_in v4_;
    sockaddr_in6 v6_;
  };
  // NOLINTEND(readability-identifier-naming)
};

struct SocketAddressHash {
  size_t operator()(const SocketAddress& address) const { return address.hash(); }
};

}  // namespace verbena::rsocket
