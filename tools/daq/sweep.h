// verbena daq-sweep: the curve.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daq/message.h"

namespace verbena::daqtool {

struct SweepOptions {
  uint32_t board = 0;  // address for the emulated board
  std::vector<uint32_t> sizes;
  std::vector<uint32_t> depths;
  uint32_t depth_bytes = 5120;
  daq::TransferKind op = daq::TransferKind::Write;
  double seconds = 0.5;
  std::string output;
};

// False: something was not received as it should be.
bool run_sweep(const SweepOptions& options);

}  // namespace verbena::daqtool
