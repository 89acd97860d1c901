// Local addresses with their sockets, paths and counters: shared by the sender and the receiver.
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
  uint64_t batches_sent = 0;
  uint64_t batches_zero_copy = 0;
  uint64_t packets_received = 0;
  uint64_t bytes_received = 0;
  uint64_t batches_received = 0;
  uint64_t icrc_errors = 0;
  uint64_t icrc_solved = 0;
  uint64_t too_short = 0;
  uint64_t misrouted_forwarded = 0;
  uint64_t misrouted_received = 0;
  uint64_t misrouted_dropped = 0;
  uint64_t broadcasts_limited = 0;
  uint64_t out_of_memory = 0;
  uint64_t send_drops = 0;
  uint64_t path_mtu_exceeded = 0;
  uint64_t steering_updates = 0;
};

// A local address, which stays open for the datapath's life because peers send to its port; or a
// multicast group, which only receives and is closed when it is left.
struct UdpEndpoint {
  host::LocalAddress address;
  bool is_group = false;
  os::UniqueFd receive_fd;
  GroSwitch gro;  // of receive_fd
  SendSocket send;
  bool hardware_segments = false;          // see egress.h
  bool kernel_segments = true;             // false after a send shows that the kernel lacks GSO
  bool may_set_segment_size = true;        // false after SendSocket::segment_bytes made a send fail
  bool reports_unreachable_hosts = false;  // a send may then report the error of an earlier one
  // The socket's defaults, taken from the first path.
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;  // 0: no path yet
  std::unique_ptr<host::Steering> steering;
};

// The path of one queue pair, or of several UD queue pairs, to one peer process.
struct UdpPath {
  UdpEndpoint* endpoint = nullptr;
  host::LocalAddress destination;
  host::SocketAddress to;
  wire::IcrcPrefixes icrc{{}};
  uint8_t traffic_class = 0;
  uint8_t hop_limit = kDefaultHopLimit;
  bool may_segment = false;
  uint32_t max_datagram_bytes = 0;
  uint32_t interface_index = 0;  // for multicast groups
  // The path of one queue pair: its packets may share batches with other such paths.
  bool may_gather = false;
  std::shared_ptr<ZeroCopyRing> zero_copy;
  // The sender's record of the path's latest packet.
  uint64_t flush_number = 0;
  size_t latest_batch = 0;

  // Whether the packets of both have the same headers below the BTH.
  bool may_share_batch(const UdpPath& other) const {
    return this == &other || (may_gather && other.may_gather && endpoint == other.endpoint &&
                              destination == other.destination &&
                              traffic_class == other.traffic_class && hop_limit == other.hop_limit);
  }
};

}  // namespace verbena::datapath
