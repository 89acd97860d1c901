// Options of a UDP datapath. The defaults are for production.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace verbena::datapath {

// Whether packets of one size are sent as GSO batches (UDP_SEGMENT).
enum class Segmentation : uint8_t {
  Auto,  // yes, except through a NIC that segments batches itself (see egress.h)
  Always,
  Never,
};

struct UdpOptions {
  // The kernel caps these at net.core.rmem_max and wmem_max.
  uint32_t receive_buffer_bytes = 4u << 20;
  uint32_t send_buffer_bytes = 4u << 20;
  Segmentation segmentation = Segmentation::Auto;
  // Off: misrouted packets reach their lane only by forwarding.
  bool steering = true;
  // For pacing probes and warnings only; null: the coarse monotonic clock.
  Instant (*now)() = nullptr;
};

}  // namespace verbena::datapath
