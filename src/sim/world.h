// World: virtual time, one source of randomness, one heap of events. All events of a run follow
// from its seed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "sim/host.h"
#include "sim/network.h"
#include "sim/process.h"
#include "sim/shared_memory.h"
#include "sim/trace.h"

namespace verbena::sim {

class World {
 public:
  explicit World(uint64_t seed)
      : prng_(seed),
        lane_prng_(seed ^ kLaneSeedOffset),
        network_(prng_, trace_),
        memory_(seed, network_, trace_) {}

  // A host that is a process of its own.
  Host& add_host(bool extensions = true);
  // Another lane of this host's process.
  Host& add_lane(Host& first, bool extensions = true);
  Host& host(HostId id) { return *hosts_[id]; }
  size_t host_count() const { return hosts_.size(); }
  Network& network() { return network_; }
  SharedMemory& memory() { return memory_; }
  uint64_t lost() const { return network_.counts().lost + memory_.counts().lost; }
  Prng& prng() { return prng_; }
  // Random choices about lanes. They are independent of the other choices, so that a run without
  // lanes does not depend on them.
  Prng& lane_prng() { return lane_prng_; }
  Trace& trace() { return trace_; }
  Instant now() const { return now_; }
  uint64_t events_done() const { return events_done_; }

  void at(Instant when, std::function<void()> action);
  void after(Duration delay, std::function<void()> action) { at(now_ + delay, std::move(action)); }
  // For the hosts: sends a packet to another host, or to all hosts with members of a group.
  void send(HostId from, wire::PathId path, Bytes packet);
  static wire::PathId path_to(HostId host) { return wire::PathId{host}; }
  static wire::PathId path_to_group(uint32_t group) {
    return wire::PathId{kFirstGroupPath + group};
  }

  // Executes the earliest event. False: there is none.
  bool step();
  void run_until(Instant end);
  void run_for(Duration duration) { run_until(now_ + duration); }
  // Runs until no event is left, or for `limit`. False: events are left.
  bool run_until_quiet(Duration limit);
  // The errors that the processes found in withdrawals of keys.
  std::vector<std::string> process_problems() const;

 private:
  struct Event {
    Instant at;
    uint64_t order;  // the earlier of two events at one time comes first
    std::function<void()> action;
  };
  static bool later(const Event& a, const Event& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }

  static constexpr uint64_t kLaneSeedOffset = 0x6C616E6573000000;
  static constexpr uint32_t kFirstGroupPath = 1u << 16;
  void send_to(HostId from, HostId to, const wire::Gid& destination, Bytes packet);

  Prng prng_;
  Prng lane_prng_;
  Trace trace_;
  Network network_;
  SharedMemory memory_;
  Instant now_{1000};
  uint64_t next_order_ = 0;
  uint64_t events_done_ = 0;
  std::vector<Event> events_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

}  // namespace verbena::sim
