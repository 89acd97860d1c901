// Runs a scenario and reports what became of its flows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/scale/network.h"

namespace verbena::scale {

struct RunShape {
  std::string scenario = "incast";  // or "fat-tree"
  std::string transport = "delay";  // an algorithm of Verbena, "dctcp" or "cubic"
  uint64_t seed = 1;
  uint32_t mtu = 4096;  // payload bytes of a packet
  // Incast
  uint32_t senders = 64;
  uint64_t bytes = 1'000'000;  // of each sender
  uint64_t gbps = 100;
  // Fat tree
  FatTree tree{};
  double load = 0.3;
  uint32_t flows = 1000;
  QueueShape queues{};
  // Flows that have not ended by then have failed.
  ns3::Time limit = ns3::Seconds(2);
};

struct FlowTime {
  uint64_t bytes = 0;
  int64_t ns = 0;  // 0: the flow failed
  int64_t fastest_ns = 0;
};

struct RunResult {
  std::vector<FlowTime> flows;
  uint64_t failed = 0;
  int64_t last_ns = 0;     // from the first start to the last end
  int64_t optimum_ns = 0;  // incast only: the same if the receiver's link never rests
  Network::Counts network;
  uint64_t median_queue = 0;
  uint64_t p99_queue = 0;
  uint64_t largest_queue = 0;
  // Verbena's counters, of all hosts.
  uint64_t ecn_marked = 0;
  uint64_t retransmitted = 0;
  uint64_t timeouts = 0;
  uint64_t probes = 0;
  // Cost on this machine.
  uint64_t events = 0;
  double seconds = 0;  // elapsed
  double cpu_seconds = 0;
  double engine_seconds = 0;    // of the elapsed ones
  uint64_t engine_packets = 0;  // sent and received
  uint64_t host_bytes = 0;      // of each host: engine and socket
  uint64_t node_bytes = 0;      // of each node of ns-3
  uint64_t peak_bytes = 0;      // of the whole process
};

RunResult run(const RunShape& shape);
std::string as_json(const RunShape& shape, const RunResult& result);

}  // namespace verbena::scale
