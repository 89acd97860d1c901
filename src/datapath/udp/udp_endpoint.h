// What the halves of the UDP datapath share: local addresses with their sockets, paths, counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "datapath/udp/gro_switch.h"
#include "datapath/udp/udp_socket.h"
#include "datapath/udp/zero_copy_ring.h"
#include "host/steering.h"
#include "wire/icrc.h"
#include "wire/packet_io.h"

namespace verbena::datapath {

struct UdpCounters {
  uint64_t packets_sent = 0;
  uint64_t bytes_sent = 0;
  uint64_t trains_sent = 0;
  uint64_t trains_lent = 0;
  uint64_t packets_received = 0;
  uint64_t bytes_received = 0;
  uint64_t trains_received = 0;
  uint64_t icrc_errors = 0;
  uint64_t icrc_solved = 0;
  uint64_t too_short = 0;
  uint64_t strays_forwarded = 0;
  uint64_t strays_received = 0;
  uint64_t strays_dropped = 0;
  uint64_t broadcasts_limited = 0;
  uint64_t out_of_memory = 0;
  uint64_t send_drops = 0;
  uint64_t path_mtu_exceeded = 0;
  uint64_t steering_updates = 0;
};

// A local address. It stays open for the datapath's life: its port is the peers' way back to us.
// Or a multicast group, which only receives and closes when it is left.
struct UdpEndpoint {
  host::LocalAddress address;
  bool is_group = false;
  os::UniqueFd receive_fd;
  GroSwitch lone;  // how that is read
  SendSocket send;
  bool hardware_segments = false;  // see egress.h
  bool kernel_segments = true;     // until a send shows that this kernel cannot
  bool may_cut = true;  // SendSocket::packet_payload_bytes; until a send shows that it disturbs
  bool reports_unreachable_hosts = false;  // so a send may fail because of an earlier one
  // What packets carry unless it is said with each: what the first path asked for.
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;  // 0: there was no path yet
  std::unique_ptr<host::Steering> steering;
};

// The way of one queue pair, or of several datagram ones, to one peer process.
struct UdpPath {
  UdpEndpoint* endpoint = nullptr;
  host::LocalAddress destination;
  host::SocketAddress to;
  wire::IcrcPrefixes icrc{{}};  // of the flow to it
  uint8_t traffic_class = 0;
  uint8_t hop_limit = kDefaultHopLimit;
  bool may_segment = false;
  uint32_t max_datagram_bytes = 0;
  uint32_t interface_index = 0;  // where groups are reached
  // One queue pair's: its packets may travel among those of others that go the same way.
  bool may_gather = false;
  std::shared_ptr<ZeroCopyRing> lent;
  // The sender's notes: where the path's latest packet of this batch is.
  uint64_t batch = 0;
  size_t latest_batch = 0;

  // With the same headers below the BTH.
  bool goes_with(const UdpPath& other) const {
    return this == &other || (may_gather && other.may_gather && endpoint == other.endpoint &&
                              destination == other.destination &&
                              traffic_class == other.traffic_class && hop_limit == other.hop_limit);
  }
};

}  // namespace verbena::datapath
