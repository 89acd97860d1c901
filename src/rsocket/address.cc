// SocketAddress: see address.h.
#include "rsocket/address.h"

#include <algorithm>
#include <cstring>

namespace verbena::rsocket {

SocketAddress SocketAddress::make_v4(in_addr address, uint16_t port) {
  SocketAddress made;
  made.v4_.sin_family = AF_INET;
  made.v4_.sin_port = htons(port);
  made.v4_.sin_addr = address;
  return made;
}

SocketAddress SocketAddress::make_v6(const in6_addr& address, uint16_t port, uint32_t flowinfo) {
  SocketAddress made;
  made.v6_.sin6_family = AF_INET6;
  made.v6_.sin6_port = htons(port);
  made.v6_.sin6_flowinfo = flowinfo;
  made.v6_.sin6_addr = address;
  return made;
}

SocketAddress SocketAddress::any(int family) {
  return family == AF_INET ? make_v4(in_addr{INADDR_ANY}, 0) : make_v6(in6addr_any, 0, 0);
}

Result<SocketAddress> SocketAddress::from(const sockaddr* address, socklen_t length) {
  if (!address) return Error{EFAULT};
  if (length < sizeof(sa_family_t)) return Error{EINVAL};
  SocketAddress made;
  if (address->sa_family == AF_INET) {
    if (length < sizeof made.v4_) return Error{EINVAL};
    std::memcpy(&made.v4_, address, sizeof made.v4_);
  } else if (address->sa_family == AF_INET6) {
    // Programs from before sin6_scope_id pass four bytes less; Linux accepts that.
    constexpr socklen_t kWithoutScope = sizeof made.v6_ - sizeof made.v6_.sin6_scope_id;
    if (length < kWithoutScope) return Error{EINVAL};
    std::memcpy(&made.v6_, address, std::min<size_t>(length, sizeof made.v6_));
  } else {
    return Error{EAFNOSUPPORT};
  }
  return made;
}

SocketAddress SocketAddress::trusted(const sockaddr* address) {
  SocketAddress made;
  if (!address) return made;
  if (address->sa_family == AF_INET) std::memcpy(&made.v4_, address, sizeof made.v4_);
  if (address->sa_family == AF_INET6) std::memcpy(&made.v6_, address, sizeof made.v6_);
  return made;
}

bool SocketAddress::is_any() const {
  if (family() == AF_INET) return v4_.sin_addr.s_addr == htonl(INADDR_ANY);
  return IN6_IS_ADDR_UNSPECIFIED(&v6_.sin6_addr);
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return ntohl(v4_.sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6_.sin6_addr);
}

bool SocketAddress::operator==(const SocketAddress& other) const {
  if (family() != other.family() || v4_.sin_port != other.v4_.sin_port) return false;
  if (family() == AF_INET) return v4_.sin_addr.s_addr == other.v4_.sin_addr.s_addr;
  return std::memcmp(&v6_.sin6_addr, &other.v6_.sin6_addr, sizeof v6_.sin6_addr) == 0;
}

size_t SocketAddress::hash() const {
  uint64_t words[2] = {};
  if (family() == AF_INET) {
    words[0] = v4_.sin_addr.s_addr;
  } else {
    std::memcpy(words, &v6_.sin6_addr, sizeof words);
  }
  const uint64_t mixed = (words[0] ^ v4_.sin_port) * 0x9E3779B97F4A7C15u + words[1];
  return static_cast<size_t>((mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9u >> 16);
}

SocketAddress SocketAddress::unmapped() const {
  if (family() != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6_.sin6_addr)) return *this;
  in_addr address;
  std::memcpy(&address, &v6_.sin6_addr.s6_addr[12], sizeof address);
  return make_v4(address, port());
}

SocketAddress SocketAddress::seen_by(int socket_family) const {
  if (socket_family != AF_INET6 || family() != AF_INET) return *this;
  in6_addr address{};
  address.s6_addr[10] = address.s6_addr[11] = 0xff;
  std::memcpy(&address.s6_addr[12], &v4_.sin_addr, 4);
  return make_v6(address, port(), 0);
}

void SocketAddress::copy_to(sockaddr* to, socklen_t* length) const {
  if (!length) return;
  if (to) std::memcpy(to, &any_, std::min(*length, size()));
  *length = size();
}

}  // namespace verbena::rsocket
