// Addresses that RoCE packets go to and come from, as values and as the socket calls take them.
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

// Link-local and IPv6 multicast addresses mean nothing without their interface.
LocalAddress local_address(const wire::Gid& gid, uint32_t interface_index);

// Whether an address is one of this host's own.
bool is_local(const LocalAddress& address);

// An address and port as the socket calls take them.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  static SocketAddress of(const LocalAddress& address, uint16_t port);
  // `from` as recvmsg filled it in.
  static wire::Gid gid_of(const sockaddr_storage& from);
  static uint16_t port_of(const sockaddr_storage& from);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// A UDP socket of the address's family; not bound.
os::UniqueFd open_udp(const LocalAddress& address);

// Sends one datagram, whatever segment size the socket is set to. A send may fail because of an
// earlier datagram that came back, so this one tries twice. Returns whether the datagram left.
bool send_one(int fd, const SocketAddress& to, std::span<const std::byte> bytes);

}  // namespace verbena::host
