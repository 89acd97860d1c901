// The sockets of one local address, as RoCEv2 needs them: one that receives on port 4791 together
// with the other processes of this user, and one of our own to send from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "datapath/udp/gro_switch.h"
#include "datapath/udp/udp_options.h"
#include "host/local_address.h"
#include "os/unique_fd.h"
#include "wire/identifiers.h"

namespace verbena::datapath {

inline constexpr int kDefaultHopLimit = 64;

// Receives on `address`, port 4791. The error says what is in the way.
Result<os::UniqueFd> open_receive_socket(const host::LocalAddress& address,
                                         const UdpOptions& options);

// Joins the group at `address` on the interface and receives what is sent to it on port 4791. Every
// process that does so gets a copy.
Result<os::UniqueFd> open_group_socket(const host::LocalAddress& address, uint32_t interface_index,
                                       const UdpOptions& options);

// What goes to groups leaves through this interface, and reaches members on this host as well.
bool send_groups_through(int fd, const host::LocalAddress& address, uint32_t interface_index);

// Has the kernel tell traffic class and hop limit of every packet.
void report_ip_headers(int fd, const host::LocalAddress& address);

// Tells the kernel whether datagrams may arrive as one batch (GRO). What is in the socket stays as
// it is.
void follow(GroSwitch::Change change, int fd);

// How often the kernel had to drop a datagram because the socket's buffer was full.
uint32_t kernel_drops(int fd);

struct SendSocket {
  os::UniqueFd fd;
  uint16_t port = 0;
  // A send is cut into datagrams of that size unless it says otherwise; 0: it is not. One that need
  // not say it is quicker.
  uint16_t packet_payload_bytes = 0;
};
// Sends from `address` and a port in 0xC000-0xFFFF that nobody else has: entropy for the network's
// flow hashing, and the receiver's kernel cannot join our packets with another process's.
Result<SendSocket> open_send_socket(const host::LocalAddress& address, const UdpOptions& options,
                                    uint8_t slot);

void cut_sends(SendSocket& socket, uint16_t bytes);

// Whether the kernel tells of packets that came back. While it does, a send may fail because of an
// earlier one.
void report_unreachable_hosts(int fd, const host::LocalAddress& address, bool on);
// One of those packets, as far as it came back, and why: ECONNREFUSED, nobody has port 4791 on that
// host; EHOSTUNREACH, there is no such host.
struct UnreachableHost {
  wire::Gid host;
  int error = 0;
  size_t bytes = 0;
  std::array<std::byte, 64> packet{};
};
std::optional<UnreachableHost> take_unreachable_host(int fd);

// What every packet from this socket carries unless it is said with the packet.
void set_ip_headers(int fd, const host::LocalAddress& address, uint8_t traffic_class,
                    uint8_t hop_limit);

// Largest UDP payload from `source` to `destination` that needs no fragments, as the kernel knows
// the way now. The error says that there is no way. Groups are reached through the interface.
Result<uint32_t> largest_datagram(const host::LocalAddress& source,
                                  const host::LocalAddress& destination, uint32_t interface_index);

}  // namespace verbena::datapath
