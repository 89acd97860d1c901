// Bottleneck: one queue in front of a slow link that many flows share, as the port of a switch. It
// drops what does not fit, and marks ECN-capable packets above a threshold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/time.h"

namespace verbena::sim {

class Bottleneck {
 public:
  struct Shape {
    uint64_t bits_per_second = 1'000'000'000;
    uint64_t queue_bytes = 200'000;
    uint64_t mark_bytes = UINT64_MAX;  // marks begin at this queue length
  };
  struct Passage {
    Instant leaves;
    bool marked = false;
  };
  struct Counts {
    uint64_t packets = 0;
    uint64_t dropped = 0;
    uint64_t marked = 0;
    uint64_t bytes = 0;
  };

  explicit Bottleneck(const Shape& shape) : shape_(shape) {}

  // Nothing: the queue is full. `bytes` are those of the IP packet and its framing.
  std::optional<Passage> enqueue(uint64_t bytes, bool ecn_capable, Instant now);
  const Counts& counts() const { return counts_; }
  void restart_counts();
  // The queue length that this share of the packets did not exceed when they came, in bytes.
  uint64_t queue_length(double share) const;

 private:
  static constexpr uint64_t kStep = 1000;  // of the lengths that are told apart, in bytes

  Shape shape_;
  Counts counts_;
  Instant busy_until_{};
  std::map<uint64_t, uint64_t> lengths_;  // in steps, and how many packets found each
};

}  // namespace verbena::sim
