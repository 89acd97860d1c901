// Conversions of socket addresses, and source address selection by the kernel's routing.
#include "abi/rdmacm/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <infiniband/ib.h>

#include <cstring>
#include <memory>

#include "os/plain_socket.h"
#include "os/unique_fd.h"

namespace verbena::rdmacm {
namespace {

using os::UniqueFd;

constexpr uint16_t kRoceV2Port = 4791;  // routes may depend on it

UniqueFd udp_socket(sa_family_t family) {
  return os::plain_socket(family, SOCK_DGRAM | SOCK_CLOEXEC);
}

bool bind_to(const UniqueFd& fd, IpAddress address) {
  address.port = 0;
  sockaddr_storage raw{};
  write_address(address, raw);
  auto* plain = reinterpret_cast<sockaddr*>(&raw);
  return ::bind(fd.get(), plain, size_of_address(plain)) == 0;
}

}  // namespace

bool IpAddress::is_any() const {
  static const wire::Gid kAnyIpv4 = any_of(AF_INET).gid;
  return gid.is_zero() || gid == kAnyIpv4;
}

IpAddress IpAddress::any_of(sa_family_t family) {
  const in_addr any{htonl(INADDR_ANY)};
  return {family, family == AF_INET ? wire::Gid::from_ipv4(&any) : wire::Gid{}};
}

IpAddress IpAddress::loopback_of(sa_family_t family) {
  const in_addr loopback{htonl(INADDR_LOOPBACK)};
  return {family, family == AF_INET ? wire::Gid::from_ipv4(&loopback)
                                    : wire::Gid::from_ipv6(&in6addr_loopback)};
}

IpAddress IpAddress::of(const wire::Gid& gid, uint16_t port, uint32_t scope) {
  return {static_cast<sa_family_t>(gid.is_ipv4() ? AF_INET : AF_INET6), gid, port,
          gid.is_link_local() ? scope : 0};
}

socklen_t size_of_address(const sockaddr* address) {
  switch (address->sa_family) {
    case AF_INET:
      return sizeof(sockaddr_in);
    case AF_INET6:
      return sizeof(sockaddr_in6);
    default:
      return 0;
  }
}

Result<IpAddress> read_address(const sockaddr* from) {
  if (from == nullptr) return Error{EINVAL, "the address is missing"};
  IpAddress to;
  to.family = from->sa_family;
  if (from->sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, from, sizeof in);
    to.gid = wire::Gid::from_ipv4(&in.sin_addr);
    to.port = ntohs(in.sin_port);
    return to;
  }
  if (from->sa_family == AF_INET6) {
    sockaddr_in6 in;
    std::memcpy(&in, from, sizeof in);
    to.gid = wire::Gid::from_ipv6(&in.sin6_addr);
    to.port = ntohs(in.sin6_port);
    if (to.gid.is_link_local() || to.gid.is_multicast()) to.scope = in.sin6_scope_id;
    return to;
  }
  if (from->sa_family == AF_IB) {
    return Error{EAFNOSUPPORT, "AF_IB is for InfiniBand fabrics; use an IP address"};
  }
  return Error{EINVAL, "the address is neither IPv4 nor IPv6"};
}

void write_address(const IpAddress& from, sockaddr_storage& to) {
  to = {};
  if (from.family == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(from.port);
    std::memcpy(&in.sin_addr, from.gid.bytes.data() + 12, sizeof in.sin_addr);
    std::memcpy(&to, &in, sizeof in);
  } else {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(from.port);
    in.sin6_scope_id = from.scope;
    std::memcpy(&in.sin6_addr, from.gid.bytes.data(), sizeof in.sin6_addr);
    std::memcpy(&to, &in, sizeof in);
  }
}

Result<IpAddress> route_to(const IpAddress& destination, const std::optional<IpAddress>& source) {
  const UniqueFd fd = udp_socket(destination.family);
  if (!fd.valid()) return Error{errno, "cannot query a route (too many open files?)"};
  if (source && !bind_to(fd, *source)) return Error{errno, "not an address of this host"};
  IpAddress target = destination;
  target.port = kRoceV2Port;
  sockaddr_storage raw{};
  write_address(target, raw);
  auto* plain = reinterpret_cast<sockaddr*>(&raw);
  if (::connect(fd.get(), plain, size_of_address(plain)) != 0) {
    return Error{errno, "there is no route to that address (see ip route get)"};
  }
  socklen_t size = sizeof raw;
  if (::getsockname(fd.get(), plain, &size) != 0) return Error{errno, "no address to send from"};
  Result<IpAddress> from = read_address(plain);
  if (from.ok() && from.value().gid.is_link_local()) from.value().scope = destination.scope;
  return from;
}

bool is_local(const IpAddress& address) {
  const UniqueFd fd = udp_socket(address.family);
  return fd.valid() && bind_to(fd, address);
}

std::vector<LocalAddress> local_addresses() {
  std::vector<LocalAddress> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || size_of_address(entry->ifa_addr) == 0) continue;
    Result<IpAddress> address = read_address(entry->ifa_addr);
    if (!address.ok()) continue;
    // An IPv4 address may have a label, "eth0:1"; names have no colon.
    std::string name = entry->ifa_name;
    found.push_back({address.value(), name.substr(0, name.find(':'))});
  }
  return found;
}

}  // namespace verbena::rdmacm
