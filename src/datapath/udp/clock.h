// The clock behind UdpOptions::now, for pacing only.
#pragma once

#include <ctime>

#include "base/time.h"
#include "datapath/udp/udp_options.h"

namespace verbena::datapath {

inline Instant read_clock(const UdpOptions& options) {
  if (options.now != nullptr) return options.now();
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return {int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

}  // namespace verbena::datapath
