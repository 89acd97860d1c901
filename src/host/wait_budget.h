// WaitBudget: limits how long a sender waits for processes of this host whose Unix sockets are
// full. A socket's queue is short (net.unix.max_dgram_qlen), so a sender waits for the reader. But
// the sender holds a lock meanwhile, and the reader may be stopped.
//
// Each destination has its own budget and regains it with the first message that is delivered to
// it. A stopped process costs its budget once and takes nothing from others. All waits together
// take at most half of the time, whatever the destinations do. The caller passes the time and does
// the waiting.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/time.h"
#include "base/token_bucket.h"

namespace verbena::host {

class WaitBudget {
 public:
  static constexpr uint8_t kWaitsPerDestination = 30;
  static constexpr uint8_t kShortWaits = 10;
  static constexpr Duration kShortWait = microseconds(50);
  static constexpr Duration kLongWait = milliseconds(1);
  // Limit for destinations with a partly spent budget. Beyond it the earliest entry is dropped:
  // that process may have ended.
  static constexpr size_t kMaxDestinations = 64;

  // Returns the next bounded wait for a destination that is full, or nothing if the budget is
  // spent.
  std::optional<Duration> next_wait(uint64_t destination, Instant now) {
    Spent* spent = find(destination);
    const uint8_t waits = spent == nullptr ? uint8_t{0} : spent->waits;
    if (waits == kWaitsPerDestination) return std::nullopt;
    const Duration wait = waits < kShortWaits ? kShortWait : kLongWait;
    if (!total_.take(now, static_cast<uint32_t>(wait.ns / kPerToken.ns))) return std::nullopt;
    if (spent == nullptr) spent = &(new_entry() = {destination, 0});
    ++spent->waits;
    return wait;
  }

  void on_delivered(uint64_t destination) {
    if (count_ == 0) [[likely]]
      return;
    if (Spent* const spent = find(destination)) *spent = spent_[--count_];
  }

 private:
  struct Spent {
    uint64_t destination = 0;
    uint8_t waits = 0;
  };
  // A token is a microsecond of waiting. It is regained after two microseconds: half of the time.
  static constexpr Duration kPerToken = microseconds(1);
  // The cost of three destinations that stop at the same moment.
  static constexpr uint32_t kMaxBurst = 62'000;

  Spent& new_entry() {
    if (count_ < kMaxDestinations) return spent_[count_++];
    return spent_[next_dropped_++ % kMaxDestinations];
  }

  Spent* find(uint64_t destination) {
    const auto end = spent_.begin() + static_cast<ptrdiff_t>(count_);
    const auto at = std::find_if(spent_.begin(), end,
                                 [&](const Spent& s) { return s.destination == destination; });
    return at == end ? nullptr : &*at;
  }

  std::array<Spent, kMaxDestinations> spent_{};
  size_t count_ = 0;
  size_t next_dropped_ = 0;
  TokenBucket total_{kMaxBurst, kPerToken * 2};
};

}  // namespace verbena::host
