// The number of processors that this process may use at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace verbena::os {

// By its CPU affinity and, if there is one, the quota of its cgroup. At least 1.
size_t usable_processors();

// Processors by "QUOTA PERIOD", as in cgroup v2's cpu.max, rounded up. Nothing: no limit.
std::optional<size_t> parse_cpu_quota(std::string_view text);

}  // namespace verbena::os
