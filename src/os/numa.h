// NUMA placement: the background thread runs on the node of the polling thread, within its own CPU
// affinity (numactl, taskset and cpusets are respected).
#pragma once

#include <sched.h>

#include <optional>
#include <string>
#include <string_view>

namespace verbena::os {

// Parses a CPU list in the kernel's notation, "0-3,8,10-11". Returns nothing if the text is
// malformed.
std::optional<cpu_set_t> parse_cpu_list(std::string_view text);

// Returns the CPUs of `allowed` that are on `node`. `nodes` is the sysfs folder of the nodes.
// Returns nothing if the host has one node, if `node` has no allowed CPU, or if sysfs cannot be
// read.
std::optional<cpu_set_t> cpus_on_node(unsigned node, const cpu_set_t& allowed,
                                      const std::string& nodes = "/sys/devices/system/node");

// Keeps one thread on the NUMA node of the threads that call note_caller().
class Placement {
 public:
  // Called by the placed thread first of all: the affinity of the process at this moment is the set
  // of allowed CPUs.
  void begin();
  // Called by any thread, one at a time: records the node that the caller runs on. It is cheap.
  void note_caller();
  // Called by the placed thread: moves it to the node of the last caller.
  void follow();

 private:
  cpu_set_t allowed_{};
  bool known_ = false;
  unsigned wanted_ = 0;
  unsigned placed_ = ~0u;
  bool noted_ = false;
};

}  // namespace verbena::os
