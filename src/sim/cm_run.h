// One seed of connection management: several processes on a few hosts connect, accept, reject,
// delay, disconnect and end, over a network that loses, duplicates and reorders datagrams. Then the
// faults end, all processes finish, and no state may be left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::sim {

struct CmRunResult {
  std::vector<std::string> violations;
  uint64_t trace_hash = 0;
  uint64_t attempts = 0;
  uint64_t established = 0;  // attempts that both sides saw established
  uint64_t rejected = 0;
  uint64_t unreachable = 0;
  uint64_t sidr_replies = 0;
  uint64_t datagrams = 0;
  bool ok() const { return violations.empty(); }
};

CmRunResult run_cm_seed(uint64_t seed);

}  // namespace verbena::sim
