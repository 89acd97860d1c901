// The traffic class of a packet: TOS of IPv4, traffic class of IPv6. The upper six bits are the
// DSCP (RFC 2474), the lower two the ECN field (RFC 3168).
#pragma once

#include <cstdint>

namespace verbena::wire {

inline constexpr uint8_t kDscpBits = 0xFC;
inline constexpr uint8_t kEcnBits = 0x03;
// The ECN field: 0 is Not-ECT, so the network drops the packet where it would mark another one.
inline constexpr uint8_t kEct0 = 0x02;  // ECN-capable: the network may mark it
inline constexpr uint8_t kCe = 0x03;    // the network has marked it: congestion experienced

constexpr uint8_t dscp_of(uint8_t traffic_class) { return traffic_class & kDscpBits; }
constexpr bool is_ecn_capable(uint8_t traffic_class) { return (traffic_class & kEcnBits) != 0; }
constexpr bool is_marked(uint8_t traffic_class) { return (traffic_class & kEcnBits) == kCe; }

}  // namespace verbena::wire
