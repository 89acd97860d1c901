// Which processors are near: the background thread runs where the application polls, among the
// processors that it was given (numactl, taskset and cpusets are respected).
#pragma once

#include <sched.h>

#include <optional>
#include <string>
#include <string_view>

namespace verbena::os {

// "0-3,8,10-11", as the kernel writes lists of processors. Nothing: it is no such list.
std::optional<cpu_set_t> parse_cpu_list(std::string_view text);

// Of those `allowed`, the ones on `node`; `nodes` is the folder that the kernel describes nodes in.
// Nothing: there is only this node, there are none of them there, or it cannot be told.
std::optional<cpu_set_t> near_cpus(unsigned node, const cpu_set_t& allowed,
                                   const std::string& nodes = "/sys/devices/system/node");

// Keeps one thread near others.
class Placement {
 public:
  // By the thread itself, before all else: what it may use is what it has now.
  void begin();
  // By anyone: where the caller is now. Cheap, and for one thread at a time.
  void note_caller();
  // By the thread: goes where the last caller was.
  void follow();

 private:
  cpu_set_t allowed_{};
  bool known_ = false;
  unsigned wanted_ = 0;
  unsigned placed_ = ~0u;
  bool noted_ = false;
};

}  // namespace verbena::os
