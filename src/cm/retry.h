// Retransmission timer of CM messages (IBA 12.9.8). The first retransmission is earlier than the
// standard's, so a lost datagram costs a fraction of a second, not the peer's whole response time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/time.h"

namespace verbena::cm {

class Retry {
 public:
  Retry() = default;
  // The last wait always has the full length, so that a reply within the standard's time is
  // accepted.
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

  // For a DREQ. Often the peer's process has ended and its DREP was lost. So all waits except the
  // last are as short as the first: seconds in total, not a minute.
  static Retry for_disconnect(Duration first, Duration full, uint8_t retries, Instant now) {
    Retry retry(first, full, retries, now);
    retry.longest_ = retry.wait_;
    return retry;
  }

  Instant deadline() const { return deadline_; }
  Instant first_sent() const { return first_sent_; }
  Instant last_sent() const { return last_sent_; }
  bool has_retransmitted() const { return has_retransmitted_; }

  // Call this when the deadline has passed. True: retransmit. False: give up.
  bool use_retry(Instant now) {
    if (left_ == 0) return false;
    --left_;
    wait_ = left_ == 0 ? full_ : std::min(wait_ * 2, longest_);
    deadline_ = now + wait_;
    last_sent_ = now;
    has_retransmitted_ = true;
    extended_ = false;
    return true;
  }

  // Call this when the peer reports that it has no such listener. True: retransmit shortly.
  // Programs often start both ends at the same time, and some (perftest) close a listener and open
  // it again.
  bool retry_after_refusal(Instant now) {
    constexpr Duration kDelays[] = {milliseconds(50), milliseconds(200)};
    if (left_ == 0 || refusals_ == std::size(kDelays)) return false;
    deadline_ = now + kDelays[refusals_++];
    return true;
  }

  // The peer has the message and needs this long (MRA). Takes effect once per transmission, so that
  // no peer can delay us forever.
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
  bool has_retransmitted_ = false;
  Duration wait_{};
  Instant first_sent_{};
  Instant last_sent_{};
  Instant deadline_ = kNever;
};

}  // namespace verbena::cm
