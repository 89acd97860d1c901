// BusyPollPolicy: whether the background thread busy-polls for the next burst. The next burst is
// usually on its way, and falling asleep and waking up takes as long as the burst. A peer that
// shares the core with this thread can send only while the thread sleeps, so failures end the busy
// polls for a while.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "runtime/prediction.h"

namespace verbena::runtime {

class BusyPollPolicy {
 public:
  // Before the first turn of a round.
  void begin() { busy_polling_ = false; }
  // A turn found packets.
  void found() {
    if (!busy_polling_) return;
    busy_polling_ = false;
    failures_ = 0;
    burst_follows_.succeeded();
  }
  // A turn found nothing; the last packets were received `quiet` ago. True: take another turn.
  bool goes_on(Duration quiet) {
    if (!busy_polling_ && !burst_follows_.try_now()) return false;
    busy_polling_ = quiet <= kLongest;
    if (!busy_polling_ && ++failures_ >= kFailuresAllowed) burst_follows_.failed();
    return busy_polling_;
  }

 private:
  static constexpr Duration kLongest = microseconds(50);
  // Every stream ends with one failure, so a few in a row mean nothing.
  static constexpr uint32_t kFailuresAllowed = 8;

  bool busy_polling_ = false;           // without a packet so far
  uint32_t failures_ = 0;               // in a row
  Prediction burst_follows_{16, 4096};  // in bursts; a failure costs 50 us
};

}  // namespace verbena::runtime
