// The clock behind UdpOptions::now, for pacing only.
#pragma once

#include "datapath/udp/udp_options.h"
#include "os/coarse_clock.h"

namespace verbena::datapath {

inline Instant read_clock(const UdpOptions& options) {
  return options.now != nullptr ? options.now() : os::coarse_now();
}

}  // namespace verbena::datapath
