// The sockets of one local address: one that receives on port 4791, shared with the other lanes of
// this user, and one to send from, with a port of its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "datapath/udp/gro_switch.h"
#include "datapath/udp/udp_options.h"
#include "datapath/wire_datapath.h"
#include "host/local_address.h"
#include "os/unique_fd.h"
#include "wire/identifiers.h"

namespace verbena::datapath {

inline constexpr int kDefaultHopLimit = 64;

// Receives on `address`, port 4791. The error names the obstacle.
Result<os::UniqueFd> open_receive_socket(const host::LocalAddress& address,
                                         const UdpOptions& options);

// Joins the group at `address` on the interface and receives on port 4791. Every process that does
// so receives a copy of each packet.
Result<os::UniqueFd> open_group_socket(const host::LocalAddress& address, uint32_t interface_index,
                                       const UdpOptions& options);

// Sends multicast through this interface, and to members on this host as well.
bool send_groups_through(int fd, const host::LocalAddress& address, uint32_t interface_index);

// Makes the kernel report the traffic class of every packet, and the hop limit.
void report_traffic_class(int fd, const host::LocalAddress& address);
void report_hop_limit(int fd, const host::LocalAddress& address);

// Enables or disables GRO. Batches that are already in the socket are not affected.
void apply(GroSwitch::Change change, int fd);

// The number of datagrams that the kernel dropped because the socket's buffer was full.
uint32_t kernel_drops(int fd);

struct SendSocket {
  os::UniqueFd fd;
  uint16_t port = 0;
  // The socket's default GSO segment size; 0: none. A send that uses the default needs no control
  // message and is faster.
  uint16_t segment_bytes = 0;
};
// Sends from `address` and a port in 0xC000-0xFFFF that no other lane has. The port is entropy
// for the network's flow hashing and keeps the receiver's GRO from merging packets of two
// lanes.
Result<SendSocket> open_send_socket(const host::LocalAddress& address, const UdpOptions& options,
                                    uint8_t slot);

void set_segment_size(SendSocket& socket, uint16_t bytes);

// Enables or disables the socket's error queue (ICMP errors). While it is enabled, a send may
// report the error of an earlier one.
void report_unreachable_hosts(int fd, const host::LocalAddress& address, bool on);
// Of a packet that was returned by an ICMP error.
std::optional<UnreachableHost> take_unreachable_host(int fd);

// Sets the traffic class of the packets that the socket sends from now on, and their priority on
// this host: the first three bits of the DSCP. By the priority, the kernel chooses the queue of the
// interface and the priority bits (PCP) of a VLAN tag.
void set_traffic_class(int fd, const host::LocalAddress& address, uint8_t traffic_class);
// Sets the socket's default. A control message overrides it for one send.
void set_hop_limit(int fd, const host::LocalAddress& address, uint8_t hop_limit);

// Largest UDP payload from `source` to `destination` without fragmentation, by the kernel's current
// route. Fails if there is no route. Multicast uses the interface.
Result<uint32_t> largest_datagram(const host::LocalAddress& source,
                                  const host::LocalAddress& destination, uint32_t interface_index);

}  // namespace verbena::datapath
