// Derives a port's properties from an interface.
#pragma once

#include <cstdint>

#include "runtime/devices.h"
#include "runtime/interfaces.h"
#include "wire/identifiers.h"

namespace verbena::runtime {

// Around a full payload, at most: IPv6 40, UDP 8, BTH 12, extension headers 28, ICRC 4. One number
// for both IP versions, because one port serves both.
inline constexpr uint32_t kMaxHeadersAroundPayload = 40 + 8 + 12 + 28 + 4;

// The interface MTU that a RoCE MTU needs.
constexpr uint32_t interface_mtu_for(wire::Mtu mtu) {
  return wire::bytes_of(mtu) + kMaxHeadersAroundPayload;
}

// The largest RoCE MTU that fits; 256, the smallest there is, if none does.
wire::Mtu roce_mtu_for(uint32_t interface_mtu);

PortState port_state_of(const Interface& link);

// A link speed of InfiniBand: lanes of 2.5, 5, 10 (FDR10), 25, 50 or 100 Gb/s.
struct LinkRate {
  uint32_t mbps;
  uint8_t lanes;
  uint8_t speed;     // active_speed of verbs, for one lane
  const char* name;  // of the speed
};
// The smallest rate that is not below `mbps`.
const LinkRate& link_rate_for(uint32_t mbps);

}  // namespace verbena::runtime
