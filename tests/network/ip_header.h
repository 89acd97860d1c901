// What a router reads and changes in an IP header: ECN and the flow that a packet belongs to.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>

namespace verbena::network {

// The sender's side of a flow: protocol, source address (IPv4 mapped into IPv6), source port. A
// process of Verbena sends from one port per lane.
struct Flow {
  uint8_t protocol = 0;
  std::array<uint8_t, 16> source{};
  uint16_t port = 0;
  auto operator<=>(const Flow&) const = default;
};

// A packet that is no whole IP header has the flow {}.
Flow flow_of(std::span<const uint8_t> packet);
std::string protocol_name(uint8_t protocol);
std::string source_text(const Flow& flow);

// Changes ECT(0) or ECT(1) to CE and mends the header checksum of IPv4. False, and no change, for
// all other packets: Not-ECT, already CE, no IP.
bool mark_congestion(std::span<uint8_t> packet);

}  // namespace verbena::network
