// NapBudget: how long a sender waits for processes of this host whose Unix sockets are full. A
// socket's queue is short (net.unix.max_dgram_qlen), so its reader gets a moment. But the sender
// holds a lock meanwhile, and the reader may be stopped.
//
// Each destination has a budget of its own, which it gets back when something got through to it: a
// stopped process costs its budget once and takes nothing from others. All naps together take at
// most half of the time, whatever the destinations do. Time is handed in; the caller waits.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/time.h"
#include "base/token_bucket.h"

namespace verbena::host {

class NapBudget {
 public:
  static constexpr uint8_t kNapsPerDestination = 30;
  static constexpr uint8_t kShortNaps = 10;
  static constexpr Duration kShortNap = microseconds(50);
  static constexpr Duration kLongNap = milliseconds(1);
  // Destinations that have spent a part of their budget. Beyond that the earliest is forgotten: it
  // may be gone for good.
  static constexpr size_t kMostDestinations = 64;

  // How long to wait once more for a destination that is full; none: do not wait.
  std::optional<Duration> next_nap(uint64_t destination, Instant now) {
    Spent* spent = find(destination);
    const uint8_t naps = spent == nullptr ? uint8_t{0} : spent->naps;
    if (naps == kNapsPerDestination) return std::nullopt;
    const Duration nap = naps < kShortNaps ? kShortNap : kLongNap;
    if (!total_.take(now, static_cast<uint32_t>(nap.ns / kPerToken.ns))) return std::nullopt;
    if (spent == nullptr) spent = &(new_entry() = {destination, 0});
    ++spent->naps;
    return nap;
  }

  void got_through(uint64_t destination) {
    if (count_ == 0) [[likely]]
      return;
    if (Spent* const spent = find(destination)) *spent = spent_[--count_];
  }

 private:
  struct Spent {
    uint64_t destination = 0;
    uint8_t naps = 0;
  };
  // A token is a microsecond of sleep, which comes back in two: half of the time.
  static constexpr Duration kPerToken = microseconds(1);
  // What three destinations that stop at the same moment may cost.
  static constexpr uint32_t kMostAtOnce = 62'000;

  Spent& new_entry() {
    if (count_ < kMostDestinations) return spent_[count_++];
    return spent_[next_forgotten_++ % kMostDestinations];
  }

  Spent* find(uint64_t destination) {
    const auto end = spent_.begin() + static_cast<ptrdiff_t>(count_);
    const auto at = std::find_if(spent_.begin(), end,
                                 [&](const Spent& s) { return s.destination == destination; });
    return at == end ? nullptr : &*at;
  }

  std::array<Spent, kMostDestinations> spent_{};
  size_t count_ = 0;
  size_t next_forgotten_ = 0;
  TokenBucket total_{kMostAtOnce, kPerToken * 2};
};

}  // namespace verbena::host
