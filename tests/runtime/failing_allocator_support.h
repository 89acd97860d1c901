// Memory that runs out on demand: operator new of this test program fails for chosen threads and
// counts.
#pragma once

#include <cstdint>

namespace verbena::test {

enum class Starve : uint8_t {
  Nobody,
  BackgroundThreads,  // those named "verbena"
  Everybody,
};

// Allocations of these threads from the `first`-th from now on fail, `count` of them.
void starve(Starve who, int64_t first, int64_t count);
// How many of those threads' allocations there were since.
int64_t allocations_seen();

}  // namespace verbena::test
