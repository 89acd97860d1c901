// Socket addresses and GIDs, and the kernel's routes to them. A RoCEv2 GID is an IP address, so
// address resolution needs nothing else.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "wire/identifiers.h"

namespace verbena::rdmacm {

struct IpAddress {
  sa_family_t family = AF_INET;  // as the program gave it; an IPv6 address may be a mapped IPv4 one
  wire::Gid gid;
  uint16_t port = 0;   // host order
  uint32_t scope = 0;  // the interface of an IPv6 link-local address

  bool is_any() const;
  bool is_multicast() const { return gid.is_multicast(); }

  static IpAddress any_of(sa_family_t family);
  static IpAddress loopback_of(sa_family_t family);
  // The family follows from the GID.
  static IpAddress of(const wire::Gid& gid, uint16_t port, uint32_t scope = 0);
};

// EAFNOSUPPORT for AF_IB, which this library does not support; EINVAL for any other non-IP address.
Result<IpAddress> read_address(const sockaddr* from);
void write_address(const IpAddress& from, sockaddr_storage& to);
// Returns 0 for an unknown family.
socklen_t size_of_address(const sockaddr* address);

// Returns the source address of packets to `destination`. The kernel chooses it for a connected
// socket that sends nothing. `source` is the address that the program wants, if any.
Result<IpAddress> route_to(const IpAddress& destination, const std::optional<IpAddress>& source);
// Whether the address belongs to this host.
bool is_local(const IpAddress& address);

struct LocalAddress {
  IpAddress address;      // without a port
  std::string interface;  // name of the interface
};
// The current addresses of the interfaces of this network namespace.
std::vector<LocalAddress> local_addresses();

}  // namespace verbena::rdmacm
