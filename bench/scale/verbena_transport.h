// VerbenaTransport: each flow is a queue pair of its own, and some WRITEs.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bench/scale/engine_host.h"
#include "bench/scale/flows.h"
#include "bench/scale/network.h"

namespace verbena::scale {

class VerbenaTransport final : public Transport {
 public:
  VerbenaTransport(const Network& network, const core::CongestionAlgorithm& congestion,
                   uint64_t seed, wire::Mtu mtu, OnEnd on_end);

  void open(uint32_t number, const Flow& flow) override;
  ns3::Time lead() const override { return {}; }

  // Of all hosts.
  std::chrono::nanoseconds engine_time() const;
  uint64_t counter(core::CounterId id) const;

 private:
  struct Open {
    uint32_t number;
    const Flow* flow;
    core::QueuePair* sender;
    core::QueuePair* receiver;
  };
  void on_completion(uint32_t host, const core::Completion& completion);
  void close(Open open);

  SharedBuffers buffers_;
  std::vector<ns3::Ptr<EngineHost>> hosts_;
  wire::Mtu mtu_;
  OnEnd on_end_;
  // By host and queue pair number, of both ends.
  std::unordered_map<uint64_t, Open> open_;
  std::unordered_set<uint32_t> ended_;  // flows
};

}  // namespace verbena::scale
