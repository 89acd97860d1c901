// What a receiver takes of its device and of the memory, settled before anything is made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/daq/recv.h"

namespace verbena::daqtool {

struct Limits {
  uint32_t queue_pair_receives = 0;
  uint32_t completions = 0;  // in one queue
  uint64_t free_memory = 0;
};

struct Plan {
  uint32_t streams = 0;
  uint32_t receives = 0;             // posted for each stream
  uint64_t memory = 0;               // bytes for each stream
  bool checks = false;               // the data can be looked at, and are to be
  std::vector<std::string> remarks;  // where it is not what was asked for

  uint32_t completions() const { return streams * receives; }
};

// Throws Trouble where what was asked for cannot be had.
Plan plan_for(const ReceiveOptions& options, const Limits& limits);

uint64_t free_memory();

}  // namespace verbena::daqtool
