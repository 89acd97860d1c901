// Local and remote addresses of RoCE packets, as values and as socket addresses.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "os/unique_fd.h"
#include "wire/identifiers.h"

namespace verbena::host {

// A GID with its scope: the interface's index for link-local and IPv6 multicast addresses,
// otherwise 0.
struct LocalAddress {
  wire::Gid gid;
  uint32_t scope = 0;
  bool operator==(const LocalAddress&) const = default;
};

// Link-local and IPv6 multicast addresses are ambiguous without their interface.
LocalAddress local_address(const wire::Gid& gid, uint32_t interface_index);

// Whether an address belongs to this host.
bool is_local(const LocalAddress& address);
// The same, or some milliseconds ago: connecting a queue pair asks several times.
bool was_local_just_now(const LocalAddress& address);

// An address and port for the socket calls.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  static SocketAddress of(const LocalAddress& address, uint16_t port);
  // `from` is the address that recvmsg returned.
  static wire::Gid gid_of(const sockaddr_storage& from);
  static uint16_t port_of(const sockaddr_storage& from);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Opens a UDP socket of the address's family. It is not bound.
os::UniqueFd open_udp(const LocalAddress& address);

// Sends one datagram, regardless of the socket's GSO segment size. A send may report the ICMP error
// of an earlier datagram, so this function tries twice. Returns whether the datagram was sent.
bool send_one(int fd, const SocketAddress& to, std::span<const std::byte> bytes);

}  // namespace verbena::host
