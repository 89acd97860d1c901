// One seed, one run: which faults, which workload, which violations all follow from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/network.h"
#include "sim/shared_memory.h"

namespace verbena::sim {

enum class RunKind : uint8_t {
  Correct,  // everybody behaves, the network does not: all work completes, exactly once
  Broken,   // somebody violates a rule: both ends notice, nothing completes twice or not at all
  Hostile,  // packets are forged: memory outside what was registered stays as it is
};

struct RunResult {
  RunKind kind{};
  uint64_t trace_hash = 0;
  uint64_t events = 0;
  uint64_t packets = 0;
  uint64_t lost = 0;
  MemoryCounts memory;  // where hosts share it
  double virtual_ms = 0;
  std::string shape;  // what this seed was about, for people
  std::vector<std::string> problems;
  bool ok() const { return problems.empty(); }
};

RunKind kind_of(uint64_t seed);
// Whether some hosts of this seed's run share memory.
bool shares_memory(uint64_t seed);
RunResult run_seed(uint64_t seed);
// With a rule, what the network does to packets beyond its faults; then problems are expected.
RunResult run_workload(uint64_t seed, bool hostile, TamperRule tamper = {});
RunResult run_broken(uint64_t seed);

// What to print when a seed fails.
std::string explain(uint64_t seed, const RunResult& result);

}  // namespace verbena::sim
