// Growth for each acknowledged window; decreases for losses, bounded for each episode.
#include "core/congestion/aimd.h"

#include <algorithm>

namespace verbena::core {
namespace {

// One sign of congestion costs at most this part of the window.
uint32_t largest_decrease(uint32_t window) { return window / 4; }

// The window shrinks by twice the lost bytes. If the peer discards the packets behind a loss, it
// shrinks at once by all that an episode may cost.
uint32_t decrease_for(uint32_t bytes_lost, bool discarded, uint32_t max_decrease) {
  return discarded ? max_decrease : std::min(2 * bytes_lost, max_decrease);
}

}  // namespace

std::unique_ptr<CongestionControl> make_aimd() { return std::make_unique<Aimd>(); }

void Aimd::on_acked(uint32_t bytes, bool, Instant) {
  acked_ += bytes;
  if (acked_ < window_) return;
  acked_ = 0;
  window_ = std::min(window_ + kIncrease, kMaxWindow);
}

void Aimd::on_lost(const LossEvent& event) {
  const LossEpisode& before = event.episode;
  const uint32_t max_decrease = largest_decrease(before.window);
  const uint32_t due = decrease_for(before.bytes_lost + event.bytes,
                                    before.discarded || event.discarded, max_decrease);
  decrease(due - decrease_for(before.bytes_lost, before.discarded, max_decrease));
}

void Aimd::on_timed_out(Instant) { decrease(largest_decrease(window_)); }

void Aimd::decrease(uint32_t bytes) {
  window_ = std::max(window_ - std::min(bytes, window_), kMinWindow);
  acked_ = 0;
}

}  // namespace verbena::core
