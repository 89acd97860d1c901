// UnackedPace: the rate of UD and UC, which have no ACKs to slow a sender down. A receiver's
// default socket buffer holds a few bursts of 64 KiB, so without a limit most packets would be lost
// even on an idle machine.
//
// A token bucket in one number: the time when it will be full again. A queue pair reserves first
// and gets the time when it may send, so queue pairs send in the order of their reservations.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace verbena::core {

class UnackedPace {
 public:
  // The burst after a pause: a third of a default receive buffer.
  static constexpr uint32_t kBurstBytes = 64 * 1024;
  static constexpr int64_t kBytesPerSecond = 250'000'000;
  // The kernel also charges the receive buffer for its own structures with each packet.
  static constexpr uint32_t kPacketOverhead = 768;
  // The largest reservation: enough for one GSO batch, and small enough for other queue pairs to
  // get their turn.
  static constexpr uint32_t kQuantumBytes = kBurstBytes / 2;

  // Reserves `cost`. Returns when it may be sent: at once if that is not after `now`.
  Instant reserve(Instant now, uint32_t cost) {
    full_at_ = std::max(full_at_, now) + time_of(cost);
    return full_at_ - time_of(kBurstBytes);
  }

  // Cancels a reservation, or a part of one.
  void cancel(uint32_t cost) { full_at_ = full_at_ - time_of(cost); }

 private:
  static constexpr Duration time_of(uint32_t bytes) {
    return nanoseconds(int64_t{bytes} * 1'000'000'000 / kBytesPerSecond);
  }

  Instant full_at_{};
};

}  // namespace verbena::core
