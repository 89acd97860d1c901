// Workload: the hosts of one run, their actors and shared objects. All of it follows from the seed.
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
  // Delivers the completions of a process to the actors.
  void poll(const Process& process) { poll(process.address()); }
  void poll_all();

  // --- when all is done --------------------------------------------------------------------------
  void send_last_messages();
  void check();
  // Takes all queue pairs to ERR and checks that every posted request completes.
  void stop();
  // Pairs of hosts that share memory.
  const std::vector<std::pair<HostId, HostId>>& links() const { return links_; }
  // The workload in words.
  std::string describe() const;

 private:
  // A process. Its number is the id of its first lane.
  struct Place {
    std::vector<Host*> lanes;
    std::vector<core::CompletionQueue*> cqs;  // by lane; one, if the lanes share it
    SharedCounter counter;
    ReceivePool* rc_receives = nullptr;  // shared by some RC endpoints
    ReceivePool* ud_receives = nullptr;
    std::vector<ReceivePool*> xrc_receives;
  };

  Prng& prng() { return world_.prng(); }
  void add_place(HostId id);
  void add_lanes(Place& place);
  // The lane of a new queue pair.
  size_t choose_lane(HostId h);
  void poll(HostId h);
  void share_memory(const MemoryLinkShape& shape);
  ReceivePool& add_pool(Host& host, const PoolShape& shape, uint32_t xrc_domain);
  void connect_two();
  void connect_reliably(HostId a, HostId b, bool shared, const ConnectionShape& shape);
  void connect_xrc(HostId a, HostId b, const ConnectionShape& shape);
  void connect_unreliably(HostId a, HostId b, const ConnectionShape& shape);
  void add_ud_endpoints();
  Endpoint& add_endpoint(HostId h, EndpointKind kind);
  ConnectionShape random_connection();
  void check_place(const Place& place);

  World& world_;
  WorkloadShape shape_;
  Report& report_;
  std::vector<Place> places_;
  std::vector<std::unique_ptr<ReceivePool>> pools_;  // shared pools
  std::vector<std::pair<HostId, HostId>> links_;
  UdMembership membership_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::map<std::string, int> kinds_;
  int plain_hosts_ = 0;  // without selective repeat
};

}  // namespace verbena::sim
