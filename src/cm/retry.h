// When to send a message again, and when to give up (IBA 12.9.8, with an earlier start: a lost
// datagram on a quiet network should cost a fraction of a second, not the peer's whole time to
// answer).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/time.h"

namespace verbena::cm {

class Retry {
 public:
  Retry() = default;
  // The last wait is always a full one: whoever answers in the standard's time is heard.
  Retry(Duration first, Duration full, uint8_t retries, Instant now)
      : full_(full),
        longest_(full),
        left_(retries),
        wait_(first.ns > 0 ? std::min(first, full) : full),
        first_sent_(now),
        last_sent_(now) {
    if (left_ == 0) wait_ = full_;
    deadline_ = now + wait_;
  }

  // For a goodbye. Often nobody is there any more: the peer's answer was lost and its process has
  // ended. So all but the last wait are as short as the first: seconds in all, not a minute.
  static Retry of_goodbye(Duration first, Duration full, uint8_t retries, Instant now) {
    Retry retry(first, full, retries, now);
    retry.longest_ = retry.wait_;
    return retry;
  }

  Instant deadline() const { return deadline_; }
  Instant first_sent() const { return first_sent_; }
  Instant last_sent() const { return last_sent_; }
  bool repeated() const { return repeated_; }

  // The deadline passed. True: send again. False: give up.
  bool again(Instant now) {
    if (left_ == 0) return false;
    --left_;
    wait_ = left_ == 0 ? full_ : std::min(wait_ * 2, longest_);
    deadline_ = now + wait_;
    last_sent_ = now;
    repeated_ = true;
    extended_ = false;
    return true;
  }

  // The peer says that nobody serves there. True: ask again in a moment, since programs start both
  // ends at once, and some (perftest) close a listener to open it anew.
  bool after_refusal(Instant now) {
    constexpr Duration kPatience[] = {milliseconds(50), milliseconds(200)};
    if (left_ == 0 || refusals_ == std::size(kPatience)) return false;
    deadline_ = now + kPatience[refusals_++];
    return true;
  }

  // The peer got the message and needs this long (MRA). Once for each time it was sent, so that
  // no peer keeps us waiting for ever.
  void extend(Duration by, Instant now) {
    if (extended_) return;
    extended_ = true;
    deadline_ = std::max(deadline_, now + by + full_);
  }

 private:
  Duration full_{};
  Duration longest_{};
  uint8_t left_ = 0;
  uint8_t refusals_ = 0;
  bool extended_ = false;
  bool repeated_ = false;
  Duration wait_{};
  Instant first_sent_{};
  Instant last_sent_{};
  Instant deadline_ = kNever;
};

}  // namespace verbena::cm
