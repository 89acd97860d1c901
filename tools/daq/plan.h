// The receiver's use of the device and of memory, decided before any object is created.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/daq/recv.h"

namespace verbena::daqtool {

struct Limits {
  uint32_t queue_pair_receives = 0;
  uint32_t completions = 0;  // in one completion queue
  uint64_t free_memory = 0;
};

struct Plan {
  uint32_t streams = 0;
  uint32_t receives = 0;             // posted for each stream
  uint64_t memory = 0;               // bytes for each stream
  bool checks = false;               // the data are to be checked and can be
  std::vector<std::string> remarks;  // deviations from the options

  uint32_t completions() const { return streams * receives; }
};

// Throws ToolError if the device or the memory is too small.
Plan plan_for(const ReceiveOptions& options, const Limits& limits);

uint64_t free_memory();

}  // namespace verbena::daqtool
