// The processors that this process may use.
#pragma once

#include <sched.h>

#include <cstddef>
#include <optional>
#include <string_view>

namespace verbena::os {

// The processors that any of its threads may run on: a thread may have confined itself to one.
// Those of the calling thread if /proc is missing.
cpu_set_t process_affinity();

// By this affinity and, if there is one, the quota of its cgroup. At least 1.
size_t usable_processors();

// Processors by "QUOTA PERIOD", as in cgroup v2's cpu.max, rounded up. Nothing: no limit.
std::optional<size_t> parse_cpu_quota(std::string_view text);

}  // namespace verbena::os
