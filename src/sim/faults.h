// What a link does to the packets on it. The default is a perfect, fast wire.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace verbena::sim {

struct LinkFaults {
  double loss = 0;
  double duplication = 0;
  double corruption = 0;  // bits flip, the ICRC notices, the packet is dropped
  double hostile = 0;     // an extra, mangled copy whose ICRC is right: somebody means harm
  bool partitioned = false;
  Duration delay = microseconds(2);
  Duration jitter{};               // up to this much more: reordering
  uint64_t bits_per_second = 0;    // 0: infinite
  uint64_t queue_bytes = 1 << 20;  // of the link's tail-drop queue, when it has a bandwidth
};

}  // namespace verbena::sim
