// Workload: the hosts of one run, who works on them, and what they share. All of it follows from
// the seed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/endpoint.h"
#include "sim/uc_endpoint.h"
#include "sim/ud_endpoint.h"

namespace verbena::sim {

template <typename T, size_t N>
T pick(Prng& prng, const T (&choices)[N]) {
  return choices[prng.below(N)];
}

class Workload {
 public:
  Workload(World& world, const WorkloadShape& shape, Report& report);

  const std::vector<std::unique_ptr<Actor>>& actors() const { return actors_; }
  bool done() const;
  // Hands what completed on a host to whom it belongs.
  void poll(HostId host);
  void poll_all();

  // --- when all is done --------------------------------------------------------------------------
  void say_farewells();
  void check();
  // Takes everything to ERR and accounts for what was posted.
  void stop();
  // Pairs of hosts that share memory.
  const std::vector<std::pair<HostId, HostId>>& links() const { return links_; }
  // For people.
  std::string describe() const;

 private:
  struct Place {
    core::CompletionQueue* cq = nullptr;
    SharedCounter counter;
    ReceivePool* rc_receives = nullptr;  // shared by whoever likes
    ReceivePool* ud_receives = nullptr;
    std::vector<ReceivePool*> xrc_receives;
  };

  Prng& prng() { return world_.prng(); }
  void add_place(HostId id);
  void share_memory(const MemoryLinkShape& shape);
  ReceivePool& add_pool(Host& host, const PoolShape& shape, uint32_t xrc_domain);
  void connect_two();
  void connect_reliably(HostId a, HostId b, bool shared, const ConnectionShape& shape);
  void connect_xrc(HostId a, HostId b, const ConnectionShape& shape);
  void connect_unreliably(HostId a, HostId b, const ConnectionShape& shape);
  void add_society();
  Endpoint& add_endpoint(HostId h, const EndpointKind& kind);
  ConnectionShape random_connection();
  void check_host(HostId h);

  World& world_;
  WorkloadShape shape_;
  Report& report_;
  std::vector<Place> places_;
  std::vector<std::unique_ptr<ReceivePool>> pools_;  // that are shared
  std::vector<std::pair<HostId, HostId>> links_;
  UdSociety society_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::map<std::string, int> kinds_;
  int plain_hosts_ = 0;  // without selective repeat
};

}  // namespace verbena::sim
