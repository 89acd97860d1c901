// Counters of running processes, as they tell them over the slot directory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "host/slot_directory.h"

namespace verbena::runtime {

struct NamedCounter {
  std::string name;
  uint64_t value = 0;
};
struct DeviceCounters {
  std::string device;
  std::vector<NamedCounter> values;  // empty: it was busy
};

std::vector<DeviceCounters> parse_counters(const std::string& report);

// Asks every process of this user and network namespace. One in the middle of a turn says that it
// is busy, and is asked again.
std::vector<host::SlotReport> ask_for_counters(Duration patience);

}  // namespace verbena::runtime
