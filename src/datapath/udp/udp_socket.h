// The sockets of one local address, as RoCEv2 needs them: one that receives on port 4791 together
// with the other processes of this user, and one of our own to send from.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/result.h"
#include "datapath/udp/lone_datagrams.h"
#include "datapath/udp/slot_directory.h"
#include "datapath/udp/udp_options.h"
#include "datapath/udp/unique_fd.h"
#include "wire/identifiers.h"

namespace verbena::datapath {

inline constexpr int kDefaultHopLimit = 64;

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

// One thing that a send says besides its bytes. Returns the room that it takes.
template <typename T>
size_t put_control(std::byte* to, int level, int type, T value) {
  cmsghdr header{};
  header.cmsg_len = CMSG_LEN(sizeof value);
  header.cmsg_level = level;
  header.cmsg_type = type;
  std::memcpy(to, &header, sizeof header);
  std::memcpy(to + CMSG_LEN(0), &value, sizeof value);
  return CMSG_SPACE(sizeof value);
}

// Link-local and IPv6 multicast addresses mean nothing without their interface.
LocalAddress local_address(const wire::Gid& gid, uint32_t interface_index);

// Receives on `address`, port 4791. The error says what is in the way.
Result<UniqueFd> open_receive_socket(const LocalAddress& address, const UdpOptions& options);

// Joins the group at `address` on the interface and receives what is sent to it on port 4791. Every
// process that does so gets a copy.
Result<UniqueFd> open_group_socket(const LocalAddress& address, uint32_t interface_index,
                                   const UdpOptions& options);

// What goes to groups leaves through this interface, and reaches members on this host as well.
bool send_groups_through(int fd, const LocalAddress& address, uint32_t interface_index);

// Has the kernel tell traffic class and hop limit of every packet.
void report_ip_headers(int fd, const LocalAddress& address);

// Tells the kernel whether datagrams may arrive as one train (GRO). What is in the socket stays as
// it is.
void follow(LoneDatagrams::Change change, int fd);

// How often the kernel had to drop a datagram because the socket's buffer was full.
uint32_t kernel_drops(int fd);

struct SendSocket {
  UniqueFd fd;
  uint16_t port = 0;
  // A send is cut into datagrams of that size unless it says otherwise; 0: it is not. One that need
  // not say it is quicker.
  uint16_t cut_bytes = 0;
};
// Sends from `address` and a port in 0xC000-0xFFFF that nobody else has: entropy for the network's
// flow hashing, and the receiver's kernel cannot join our packets with another process's.
Result<SendSocket> open_send_socket(const LocalAddress& address, const UdpOptions& options,
                                    uint8_t slot);

void cut_sends(SendSocket& socket, uint16_t bytes);

// Whether the kernel tells of packets that came back. While it does, a send may fail because of an
// earlier one.
void hear_absences(int fd, const LocalAddress& address, bool on);
// So this one tries twice. Whether it left.
bool send_one(int fd, const SocketAddress& to, std::span<const std::byte> bytes);
// One of those packets, as far as it came back, and why: ECONNREFUSED, nobody has port 4791 on that
// host; EHOSTUNREACH, there is no such host.
struct Absence {
  wire::Gid host;
  int error = 0;
  size_t bytes = 0;
  std::array<std::byte, 64> packet{};
};
std::optional<Absence> take_absence(int fd);

// What every packet from this socket carries unless it is said with the packet.
void set_ip_headers(int fd, const LocalAddress& address, uint8_t traffic_class, uint8_t hop_limit);

// Largest UDP payload from `source` to `destination` that needs no fragments, as the kernel knows
// the way now. The error says that there is no way. Groups are reached through the interface.
Result<uint32_t> largest_datagram(const LocalAddress& source, const LocalAddress& destination,
                                  uint32_t interface_index);

// Whether an address is one of this host's own.
bool is_local(const LocalAddress& address);

}  // namespace verbena::datapath
