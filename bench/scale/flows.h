// The flows of a scenario, and the transports that carry them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ns3/nstime.h"

namespace verbena::scale {

struct Flow {
  uint32_t source = 0;  // hosts
  uint32_t destination = 0;
  uint64_t bytes = 0;
  ns3::Time start;
};

// Every host but the first sends to the first at the same time.
std::vector<Flow> incast(uint32_t senders, uint64_t bytes);

// Flow sizes of WebSearch (DCTCP, SIGCOMM 2010, as the HPCC paper uses them) between random pairs
// of hosts. They begin by a Poisson process that loads the link of a host to this share.
struct WebSearch {
  uint32_t hosts = 0;
  uint64_t host_gbps = 100;
  double load = 0.5;
  uint32_t flows = 0;
  uint64_t seed = 1;

  static double mean_bytes();
  static uint64_t bytes_at(double fraction);  // of the distribution: 0 to 1
};
std::vector<Flow> web_search(const WebSearch& shape);

// Carries flows. A flow ends when the receiver's program has all its bytes.
class Transport {
 public:
  using OnEnd = std::function<void(uint32_t flow, bool succeeded)>;
  virtual ~Transport() = default;
  // The flow of this number may be opened: its connection exists when it begins.
  virtual void open(uint32_t number, const Flow& flow) = 0;
  // Before flow.start.
  virtual ns3::Time lead() const = 0;
};

}  // namespace verbena::scale
