// UnackedPace: how fast a device sends what nobody acknowledges. Nothing comes back for UD and UC
// that would slow a sender down, and a receiver's default socket buffer holds a few 64 KiB bursts;
// a sender that goes as fast as it can loses most of what it sends, on the quietest machine.
//
// A token bucket in one number: the moment at which it would be full again. Whoever wants to send
// reserves first and is told when, so queue pairs take turns in the order in which they asked.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace verbena::core {

class UnackedPace {
 public:
  // What may leave at once after a pause: a third of what a default receive buffer takes.
  static constexpr uint32_t kBurstBytes = 64 * 1024;
  static constexpr int64_t kBytesPerSecond = 250'000'000;
  // The kernel charges a receive buffer for its own structures with each packet, too.
  static constexpr uint32_t kPacketOverhead = 768;
  // The most one reservation is for: enough to leave as one send, short enough for others to come
  // between.
  static constexpr uint32_t kQuantumBytes = kBurstBytes / 2;

  // Sets `cost` aside; the answer is when it may be sent. Now or earlier: at once.
  Instant reserve(Instant now, uint32_t cost) {
    full_at_ = std::max(full_at_, now) + time_of(cost);
    return full_at_ - time_of(kBurstBytes);
  }

  // What was set aside and will not be sent.
  void cancel(uint32_t cost) { full_at_ = full_at_ - time_of(cost); }

 private:
  static constexpr Duration time_of(uint32_t bytes) {
    return nanoseconds(int64_t{bytes} * 1'000'000'000 / kBytesPerSecond);
  }

  Instant full_at_{};
};

}  // namespace verbena::core
