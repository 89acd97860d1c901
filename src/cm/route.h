// Finds the process of a host that a management datagram is for. All processes share queue pair 1.
// Replies are routed by the slot in their communication ID, requests by their service ID.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::cm {

struct Route {
  enum class Kind : uint8_t {
    Slot,          // to the process of this slot
    Service,       // to the process that listens on this service ID; to any process if none does
    AllProcesses,  // a REJ without our ID; one of the processes has the connection
    None,          // not a CM datagram
  };
  Kind kind = Kind::None;
  uint8_t slot = 0;
  uint64_t service_id = 0;
};

Route route_of(std::span<const std::byte> mad);

}  // namespace verbena::cm
