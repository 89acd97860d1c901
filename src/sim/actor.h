// Actor: an application in the simulator. It posts random work, models its effects, and compares
// them with the completions. There is one class per transport.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/report.h"
#include "sim/world.h"

namespace verbena::sim {

// The common properties of the queue pairs of one run.
struct WorkloadShape {
  QpShape qp;
  uint32_t max_message = 4096;
  uint32_t requests = 50;      // per actor
  double late_receives = 0.3;  // probability that free receives are not posted
  // Faults that are visible without retransmission.
  bool reorders = false;
  bool duplicates = false;
  // Some hosts share memory, by links of this shape.
  std::optional<MemoryLinkShape> memory;
  bool lanes = false;  // processes may have several
  // Off when packets are forged: then only memory safety is checked.
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

  // All work is done and the network has no faults: sends a message that must be received. False:
  // none is left to send.
  virtual bool send_last_message() { return false; }
  // The number of messages to this actor that were not received.
  virtual uint64_t missing() const { return 0; }
  // Checks memory and everything else that is known at the end.
  virtual void check() = 0;
  // Takes its queue pairs to ERR; completions are flushed from now on.
  virtual void stop() = 0;
  // After stop(): what is wrong with the receives of its own queue; empty if nothing.
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
