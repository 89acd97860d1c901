// Counters of running processes, queried through the slot directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "host/slot_directory.h"

namespace verbena::runtime {

struct NamedCounter {
  std::string name;
  uint64_t value = 0;
  std::string meaning;
};
struct DeviceCounters {
  std::string device;
  std::vector<NamedCounter> values;  // empty: the process was busy
};

std::vector<DeviceCounters> parse_counters(const std::string& report);

// Queries every process of this user and network namespace. A process in the middle of a turn
// replies that it is busy and is queried again.
std::vector<host::SlotReport> query_counters(Duration timeout);

// The processes without a reply among these reports. A process has several slots: one per lane.
struct SilentProcesses {
  size_t seen = 0;          // by this user
  size_t unseen_slots = 0;  // of the others; how many processes have them is not known
};
SilentProcesses silent_processes(const std::vector<host::SlotReport>& reports);

}  // namespace verbena::runtime
