// What an owner may choose about a UDP datapath. Defaults are for production.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace verbena::datapath {

// Whether equal-sized packets leave as one send that the kernel cuts (UDP_SEGMENT).
enum class Segmentation : uint8_t {
  Auto,  // yes, except through a NIC that cuts by itself: it may number the IP ids its own way
  Always,
  Never,
};

struct UdpOptions {
  // Asked of the kernel, which caps it at net.core.rmem_max and wmem_max.
  uint32_t receive_buffer_bytes = 4u << 20;
  uint32_t send_buffer_bytes = 4u << 20;
  Segmentation segmentation = Segmentation::Auto;
  // Off: packets reach the right process only by being forwarded.
  bool steering = true;
  // Only for pacing probes and warnings; null reads the monotonic clock.
  Instant (*now)() = nullptr;
};

}  // namespace verbena::datapath
