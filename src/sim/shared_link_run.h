// A run of several flows through one bottleneck: WRITEs of one host each to one receiver, and
// perhaps TCP. It shows how congestion control shares a link.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.h"
#include "sim/bottleneck.h"
#include "wire/identifiers.h"

namespace verbena::sim {

struct SharedLinkShape {
  Bottleneck::Shape bottleneck{};
  uint32_t senders = 1;
  uint32_t tcp_flows = 0;
  Duration senders_start{};           // so long after TCP, within 1 ms
  Duration delay = microseconds(50);  // one way
  double loss = 0;                    // of all packets in both directions
  wire::Mtu mtu = wire::Mtu::k1024;
  uint32_t message_bytes = 64 * 1024;
  Duration warm_up = milliseconds(1500);
  Duration measured = milliseconds(2000);
  uint8_t timeout = 14;     // 67 ms
  bool busy_hosts = false;  // they wait up to 2 ms for a CPU, about half of the time
};

// All figures are of the measured time.
struct SharedLinkResult {
  std::vector<double> shares;  // of the link, payload and headers, for each sender
  std::vector<double> tcp_shares;
  double utilisation = 0;  // of the link, all flows
  double jain = 0;         // of the senders: 1 if all shares are equal
  double dropped = 0;      // share of the packets
  uint64_t median_queue = 0;
  uint64_t failed = 0;  // queue pairs that gave up
};

SharedLinkResult run_shared_link(uint64_t seed, const SharedLinkShape& shape);

}  // namespace verbena::sim
