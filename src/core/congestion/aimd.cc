// Growth for each acknowledged window; decreases for losses, bounded for each episode.
#include "core/congestion/aimd.h"

#include <algorithm>

namespace verbena::core {
namespace {

// One sign of congestion costs at most this part of the window.
uint32_t largest_decrease(uint32_t window) { return window / 4; }

uint32_t decrease_for(uint32_t bytes_lost, bool discarded, uint32_t max_decrease) {
  return discarded ? max_decrease : std::min(2 * bytes_lost, max_decrease);
}

}  // namespace

std::unique_ptr<CongestionControl> make_aimd() { return std::make_unique<Aimd>(); }

const CongestionAlgorithm& within_host(const CongestionAlgorithm& algorithm) {
  static constexpr CongestionAlgorithm kAimd{"aimd", "", make_aimd};
  return algorithm.make == make_delay ? kAimd : algorithm;
}

uint32_t decrease_for_loss(const LossEvent& event, uint32_t max_decrease) {
  const LossEpisode& before = event.episode;
  const uint32_t due = decrease_for(before.bytes_lost + event.bytes,
                                    before.discarded || event.discarded, max_decrease);
  return due - decrease_for(before.bytes_lost, before.discarded, max_decrease);
}

void Aimd::on_acked(const AckEvent& event) {
  acked_ += event.bytes;
  if (acked_ < window_) return;
  acked_ = 0;
  window_ = std::min(window_ + kIncrease, kMaxWindow);
}

void Aimd::on_lost(const LossEvent& event) {
  decrease(decrease_for_loss(event, largest_decrease(event.episode.window)));
}

void Aimd::on_timed_out(Instant) { decrease(largest_decrease(window_)); }

void Aimd::decrease(uint32_t bytes) {
  window_ = std::max(window_ - std::min(bytes, window_), kMinWindow);
  acked_ = 0;
}

}  // namespace verbena::core
