// Failing allocations: operator new of this test program fails for chosen threads and counts.
#pragma once

#include <cstdint>

namespace verbena::test {

enum class FailIn : uint8_t {
  NoThread,
  BackgroundThreads,  // threads named "verbena"
  AllThreads,
};

// Allocations of these threads from the `first`-th from now on fail, `count` of them.
void fail_allocations(FailIn threads, int64_t first, int64_t count);
// The number of allocations of those threads since then.
int64_t allocations_seen();

}  // namespace verbena::test
