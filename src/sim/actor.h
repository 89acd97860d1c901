// Actor: an application in the simulator. It posts random work, knows what must come of it, and
// checks that when completions arrive. One kind per transport; the run polls and asks them all
// alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/report.h"
#include "sim/world.h"

namespace verbena::sim {

// What the queue pairs of one run have in common.
struct WorkloadShape {
  QpShape qp;
  uint32_t max_message = 4096;
  uint32_t requests = 50;      // per actor
  double late_receives = 0.3;  // how often receives are not posted again although they could be
  // What the network may do to packets that nobody repeats.
  bool reorders = false;
  bool duplicates = false;
  // Some hosts share memory, by links of this shape.
  std::optional<MemoryLinkShape> memory;
  // Off when somebody forges packets: then nothing but memory safety can be promised.
  bool strict = true;
};

class Actor {
 public:
  Actor(World& world, Host& host, const WorkloadShape& shape, Report& report)
      : world_(world), host_(host), shape_(shape), report_(report) {}
  virtual ~Actor() = default;
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  Host& host() { return host_; }
  virtual bool owns(wire::Qpn qpn) const = 0;

  // Posts a few requests and receives, as the queues permit.
  virtual void work() = 0;
  virtual void fill_receives() = 0;
  virtual void on_completion(const core::Completion& completion) = 0;
  virtual bool done() const = 0;
  virtual std::string describe() const = 0;

  // All is at rest and the network is whole: sends something that must arrive now, whatever was
  // lost before. False if there is nothing more to say.
  virtual bool send_last_message() { return false; }
  // How many messages to this actor may have been lost: they did not arrive.
  virtual uint64_t missing() const { return 0; }
  // Memory and all else that can be told at the end.
  virtual void check() = 0;
  // Takes its queue pairs to ERR; what comes now is flushed.
  virtual void stop() = 0;
  // What is wrong with the receives that it alone had, now that all are flushed.
  virtual std::string check_stopped() const = 0;

 protected:
  Prng& prng() { return world_.prng(); }
  void problem(const std::string& what) {
    if (shape_.strict) report_.problem(world_.now(), describe() + ": " + what);
  }

  World& world_;
  Host& host_;
  WorkloadShape shape_;
  Report& report_;
};

}  // namespace verbena::sim
