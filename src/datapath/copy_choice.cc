// Trials of both ways to copy.
#include "datapath/copy_choice.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "base/past_caches.h"

namespace verbena::datapath {

Instant CopyChoice::system_clock() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return {int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

void CopyChoice::copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (past_caches_) {
    copy_past_caches(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
  add(bytes);
}

void CopyChoice::next_phase() {
  if (phase_ == kPhases) {  // the first series stays with the present way
    before_trial_ = past_caches_;
    phase_ = 0;
    left_ = kUnmeasured;
    return;
  }
  const Instant now = clock_();
  if (phase_ % 2 == 0) {
    since_ = now;
    left_ = kMeasured;
  } else {
    taken_[phase_ / 2] = now - since_;
    past_caches_ = !past_caches_;
    left_ = kUnmeasured;
  }
  if (++phase_ == kPhases) decide();
}

// Both comparisons must agree: the program may have paused during a series.
void CopyChoice::decide() {
  const auto is_slower = [&](size_t series) {  // than the other way, by more than a 16th
    const int64_t other = taken_[series + 1].ns;
    return taken_[series].ns > other + other / 16;
  };
  const bool changes = is_slower(0) && is_slower(2);
  past_caches_ = before_trial_ != changes;
  stay_ = changes ? kShortestStay : std::min(2 * stay_, kLongestStay);
  left_ = stay_;
}

}  // namespace verbena::datapath
