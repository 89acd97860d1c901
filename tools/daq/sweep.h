// verbena daq-sweep: measures throughput over message size and over the number of receives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daq/message.h"

namespace verbena::daqtool {

struct SweepOptions {
  uint32_t board = 0;  // address of the emulated board
  std::vector<uint32_t> sizes;
  std::vector<uint32_t> depths;
  uint32_t depth_bytes = 5120;
  daq::TransferKind op = daq::TransferKind::Write;
  double seconds = 0.5;
  std::string output;
};

// False: a measurement received wrong data or none.
bool run_sweep(const SweepOptions& options);

}  // namespace verbena::daqtool
