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

// name (users see it behind "udp_"), meaning
#define VERBENA_UDP_COUNTERS(X)                                                               \
  X(packets_sent, "RoCE packets handed to the kernel")                                        \
  X(bytes_sent, "their bytes, BTH to ICRC")                                                   \
  X(batches_sent, "GSO batches that contained them")                                          \
  X(batches_zero_copy, "of these, sent without a copy")                                       \
  X(packets_received, "RoCE packets received from the kernel with a correct ICRC")            \
  X(bytes_received, "their bytes, BTH to ICRC")                                               \
  X(batches_received, "GRO batches that contained them")                                      \
  X(icrc_errors, "dropped: wrong ICRC")                                                       \
  X(icrc_solved, "accepted with an IP identification found by solving the ICRC")              \
  X(too_short, "dropped: shorter than any RoCE packet")                                       \
  X(misrouted_forwarded, "misrouted packets, forwarded to their lane")                        \
  X(misrouted_received, "misrouted packets that another lane forwarded to this one")          \
  X(misrouted_dropped, "dropped: misrouted packets for a lane that does not exist")           \
  X(broadcasts_limited, "dropped: connection rejects for all processes, over the rate limit") \
  X(out_of_memory, "dropped: packets and messages for which memory was exhausted")            \
  X(send_drops, "dropped: packets that the kernel did not accept")                            \
  X(path_mtu_exceeded, "packets larger than the path MTU")                                    \
  X(steering_updates, "times the steering program in the kernel was replaced")

struct UdpCounters {
#define X(name, meaning) uint64_t name = 0;
  VERBENA_UDP_COUNTERS(X)
#undef X
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
  bool reports_traffic_class = false;      // of received packets
  uint8_t traffic_class = 0;               // of the batch that was sent last
  uint8_t hop_limit = 0;  // the socket's default, taken from the first path; 0: no path yet
  std::unique_ptr<host::Steering> steering;
};

// The path of one queue pair, or of several UD queue pairs, to one lane of a peer.
struct UdpPath {
  UdpEndpoint* endpoint = nullptr;
  host::LocalAddress destination;
  host::SocketAddress to;
  wire::IcrcPrefixes icrc{{}};
  uint8_t traffic_class = 0;
  uint8_t hop_limit = kDefaultHopLimit;
  bool may_segment = false;
  bool is_local = false;  // to this host
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
