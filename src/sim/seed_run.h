// One run. Its faults, workload and violations follow from the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/network.h"
#include "sim/shared_memory.h"

namespace verbena::sim {

enum class RunKind : uint8_t {
  Correct,    // only the network has faults: all work completes exactly once
  Broken,     // one side violates a rule: both ends report it, each request completes once
  Hostile,    // packets are forged: unregistered memory does not change
  Withdrawn,  // keys are withdrawn while peers use them: no access follows
};

// What happened to processes with several lanes.
struct LaneCounts {
  size_t most = 1;              // lanes of one process
  uint64_t turns_in_waits = 0;  // of other lanes while a call waited for lookups
  uint64_t withdrawals = 0;     // keys withdrawn while peers use them
  uint64_t in_turns = 0;        // of them, while a lane was in a turn
  uint64_t refused = 0;         // requests that failed because of them
};

struct RunResult {
  RunKind kind{};
  uint64_t trace_hash = 0;
  uint64_t events = 0;
  uint64_t packets = 0;
  uint64_t lost = 0;
  MemoryCounts memory;  // of links through shared memory
  LaneCounts lanes;
  double virtual_ms = 0;
  std::string shape;  // the run in words
  std::vector<std::string> problems;
  bool ok() const { return problems.empty(); }
};

RunKind kind_of(uint64_t seed);
// Whether some hosts of this seed's run share memory.
bool shares_memory(uint64_t seed);
// Whether some processes of this seed's run may have several lanes. The run is otherwise the same
// as without lanes: choices about lanes have a source of randomness of their own.
bool has_lanes(uint64_t seed);
// How often the network marks a packet (ECN). Not drawn, so that other seeds keep their traces.
double mark_probability(uint64_t seed);
RunResult run_seed(uint64_t seed);
// With a tamper rule, problems are expected.
RunResult run_workload(uint64_t seed, bool hostile, TamperRule tamper = {});
RunResult run_broken(uint64_t seed);
RunResult run_withdrawn(uint64_t seed, TamperRule tamper = {});

class Report;
class World;
// What all kinds of runs report.
RunResult result_of(RunKind kind, World& world, const Report& report);

// The text to print when a seed fails.
std::string explain(uint64_t seed, const RunResult& result);

}  // namespace verbena::sim
