// Draws flows.
#include "bench/scale/flows.h"

#include <array>
#include <cmath>

#include "base/prng.h"

namespace verbena::scale {
namespace {

struct Point {
  double bytes;
  double share;  // of flows that are not longer
};
constexpr std::array<Point, 12> kWebSearch = {{{1, 0},
                                               {10e3, 0.15},
                                               {20e3, 0.20},
                                               {30e3, 0.30},
                                               {50e3, 0.40},
                                               {80e3, 0.53},
                                               {200e3, 0.60},
                                               {1e6, 0.70},
                                               {2e6, 0.80},
                                               {5e6, 0.90},
                                               {10e6, 0.97},
                                               {30e6, 1}}};
// The network is quiet before.
constexpr int64_t kBeginUs = 1000;

}  // namespace

std::vector<Flow> incast(uint32_t senders, uint64_t bytes) {
  std::vector<Flow> flows;
  for (uint32_t i = 1; i <= senders; ++i) {
    flows.push_back(
        {.source = i, .destination = 0, .bytes = bytes, .start = ns3::MicroSeconds(kBeginUs)});
  }
  return flows;
}

double WebSearch::mean_bytes() {
  double mean = 0;
  for (size_t i = 1; i < kWebSearch.size(); ++i) {
    mean += (kWebSearch[i].share - kWebSearch[i - 1].share) *
            (kWebSearch[i].bytes + kWebSearch[i - 1].bytes) / 2;
  }
  return mean;
}

uint64_t WebSearch::bytes_at(double fraction) {
  size_t i = 1;
  while (i + 1 < kWebSearch.size() && kWebSearch[i].share < fraction) ++i;
  const Point& low = kWebSearch[i - 1];
  const Point& high = kWebSearch[i];
  const double part = (fraction - low.share) / (high.share - low.share);
  return static_cast<uint64_t>(low.bytes + part * (high.bytes - low.bytes));
}

std::vector<Flow> web_search(const WebSearch& shape) {
  Prng prng(shape.seed);
  const double bytes_per_ns =
      shape.load * static_cast<double>(shape.hosts) * static_cast<double>(shape.host_gbps) / 8;
  const double mean_gap_ns = WebSearch::mean_bytes() / bytes_per_ns;
  double at_ns = kBeginUs * 1e3;
  std::vector<Flow> flows;
  for (uint32_t i = 0; i < shape.flows; ++i) {
    at_ns -= std::log(1 - prng.fraction()) * mean_gap_ns;
    Flow flow;
    flow.source = static_cast<uint32_t>(prng.below(shape.hosts));
    flow.destination = static_cast<uint32_t>(prng.below(shape.hosts - 1));
    if (flow.destination >= flow.source) ++flow.destination;
    flow.bytes = WebSearch::bytes_at(prng.fraction());
    flow.start = ns3::NanoSeconds(static_cast<int64_t>(at_ns));
    flows.push_back(flow);
  }
  return flows;
}

}  // namespace verbena::scale
