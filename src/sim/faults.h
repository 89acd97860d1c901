// The properties of a link and the faults of its packets. The default is a perfect, fast wire.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "wire/packet_faults.h"

namespace verbena::sim {

struct LinkFaults {
  wire::PacketFaults packet;
  double hostile = 0;  // an extra, mangled copy with a valid ICRC: an attack
  bool partitioned = false;
  Duration delay = microseconds(2);
  Duration jitter{};               // up to this much more delay for every packet: reordering
  uint64_t bits_per_second = 0;    // 0: infinite
  uint64_t queue_bytes = 1 << 20;  // of the link's tail-drop queue, when it has a bandwidth
};

}  // namespace verbena::sim
