// The queue's length follows from when its last packet will have left.
#include "sim/bottleneck.h"

#include <algorithm>

namespace verbena::sim {

std::optional<Bottleneck::Passage> Bottleneck::enqueue(uint64_t bytes, bool ecn_capable,
                                                       Instant now) {
  const Instant start = std::max(now, busy_until_);
  const uint64_t queued =
      static_cast<uint64_t>((start - now).ns) * shape_.bits_per_second / 8 / 1'000'000'000;
  ++counts_.packets;
  ++lengths_[queued / kStep];
  if (queued + bytes > shape_.queue_bytes) {
    ++counts_.dropped;
    return std::nullopt;
  }
  counts_.bytes += bytes;
  const bool marked = ecn_capable && queued >= shape_.mark_bytes;
  if (marked) ++counts_.marked;
  busy_until_ =
      start + nanoseconds(static_cast<int64_t>(bytes * 8 * 1'000'000'000 / shape_.bits_per_second));
  return Passage{busy_until_, marked};
}

void Bottleneck::restart_counts() {
  counts_ = {};
  lengths_.clear();
}

uint64_t Bottleneck::queue_length(double share) const {
  uint64_t below = 0;
  for (const auto& [steps, packets] : lengths_) {
    below += packets;
    if (static_cast<double>(below) >= share * static_cast<double>(counts_.packets)) {
      return (steps + 1) * kStep;
    }
  }
  return 0;
}

}  // namespace verbena::sim
