// The faults of a link. The default is a perfect, fast wire.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace verbena::sim {

struct LinkFaults {
  double loss = 0;
  double duplication = 0;
  double corruption = 0;  // flipped bits; the ICRC check drops the packet
  double hostile = 0;     // an extra, mangled copy with a valid ICRC: an attack
  bool partitioned = false;
  Duration delay = microseconds(2);
  Duration jitter{};               // up to this much more delay: reordering
  uint64_t bits_per_second = 0;    // 0: infinite
  uint64_t queue_bytes = 1 << 20;  // of the link's tail-drop queue, when it has a bandwidth
};

}  // namespace verbena::sim
