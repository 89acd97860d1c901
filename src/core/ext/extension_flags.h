// ExtensionFlags: the values that two Verbenas write into the seven reserved bits of the BTH, which
// every other implementation sends as 0 and ignores.
//
// A responder sets `sack_capable` in its first response of a connection and in every sequence NAK:
// it can buffer the requests behind a gap. A requester that has seen this flag sets `sack` in its
// requests: it reads SACK lists. Only then does a responder buffer requests or send lists, and only
// then may a requester send packets out of order (`reordered`) or piggyback an ACK (`piggyback`).
// The two ends of a connection use different values, told apart by their QPNs, so a NIC that echoes
// reserved bits announces nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/identifiers.h"

namespace verbena::core {

struct ExtensionFlags {
  uint8_t sack_capable = 0;  // in a response
  uint8_t sack = 0;          // in a request
  uint8_t reordered = 0;     // in a request that left before one with a lower PSN
  // In a request whose payload follows four more bytes: the PSN of a piggybacked ACK.
  uint8_t piggyback = 0;
};

inline constexpr size_t kPiggybackBytes = 4;

// No flags (0) when the QPNs are equal: that queue pair uses no extensions.
constexpr ExtensionFlags flags_sent_by(wire::Qpn sender, wire::Qpn receiver) {
  if (sender.value() < receiver.value()) {
    return {.sack_capable = 0x1E, .sack = 0x2A, .reordered = 0x33, .piggyback = 0x4C};
  }
  if (sender.value() > receiver.value()) {
    return {.sack_capable = 0x2D, .sack = 0x19, .reordered = 0x07, .piggyback = 0x34};
  }
  return {};
}

}  // namespace verbena::core
