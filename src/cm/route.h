// Which process of a host a management datagram is for. All of them share queue pair 1: answers go
// by the slot in their communication id, requests by the service they ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::cm {

struct Route {
  enum class Kind : uint8_t {
    Slot,      // to the process of this slot
    Service,   // to the process that listens on this service id; to any, if none does
    Everyone,  // a REJ whose sender never learnt our id: whoever has the connection knows
    Nobody,    // not a datagram of ours
  };
  Kind kind = Kind::Nobody;
  uint8_t slot = 0;
  uint64_t service_id = 0;
};

Route route_of(std::span<const std::byte> mad);

}  // namespace verbena::cm
