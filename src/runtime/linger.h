// Linger: whether the background thread waits awake for the next burst. It is under way as a rule,
// and falling asleep and waking up would take as long as the burst. But where the peer needs this
// very core to send it, waiting awake is always in vain, and so it is given up.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "runtime/guess.h"

namespace verbena::runtime {

class Linger {
 public:
  // Before the first turn.
  void begin() { awake_in_vain_ = false; }
  // A turn found something.
  void found() {
    if (!awake_in_vain_) return;
    awake_in_vain_ = false;
    disappointments_ = 0;
    burst_follows_.came_true();
  }
  // A turn found nothing, so long after the last that did. Whether to take another.
  bool goes_on(Duration quiet) {
    if (!awake_in_vain_ && !burst_follows_.worth_trying()) return false;
    awake_in_vain_ = quiet <= kLongest;
    if (!awake_in_vain_ && ++disappointments_ >= kPatience) burst_follows_.disappointed();
    return awake_in_vain_;
  }

 private:
  static constexpr Duration kLongest = microseconds(50);
  // The end of every stream is a disappointment, so a few in a row say nothing yet.
  static constexpr uint32_t kPatience = 8;

  bool awake_in_vain_ = false;     // so far
  uint32_t disappointments_ = 0;   // in a row
  Guess burst_follows_{16, 4096};  // in bursts. Wrong: 50 us
};

}  // namespace verbena::runtime
