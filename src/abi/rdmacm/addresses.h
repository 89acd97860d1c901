// Socket addresses and GIDs, and what the kernel's routing says about them. A RoCEv2 GID is an IP
// address, so that is all there is to address resolution.
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
  sa_family_t family = AF_INET;  // as the program wrote it; an IPv6 one may hold a mapped IPv4
  wire::Gid gid;
  uint16_t port = 0;   // host order
  uint32_t scope = 0;  // the interface of an IPv6 link-local address

  bool is_any() const;
  bool is_multicast() const { return gid.is_multicast(); }

  static IpAddress any_of(sa_family_t family);
  static IpAddress loopback_of(sa_family_t family);
  // Of the family that the GID stands for.
  static IpAddress of(const wire::Gid& gid, uint16_t port, uint32_t scope = 0);
};

// EAFNOSUPPORT for AF_IB, which this library leaves out; EINVAL for what is no IP address.
Result<IpAddress> read_address(const sockaddr* from);
void write_address(const IpAddress& from, sockaddr_storage& to);
// 0 for an unknown family.
socklen_t size_of_address(const sockaddr* address);

// From where packets to `destination` leave, asked of the kernel with a socket that is connected
// and never used. `source`: the address that the program wants; none: the kernel chooses.
Result<IpAddress> route_to(const IpAddress& destination, const std::optional<IpAddress>& source);
// Whether it is an address of this host.
bool is_local(const IpAddress& address);

struct LocalAddress {
  IpAddress address;      // without a port
  std::string interface;  // its name
};
// What the interfaces of this network namespace have now.
std::vector<LocalAddress> local_addresses();

}  // namespace verbena::rdmacm
