// Scoreboard: what a requester knows of each PSN between the first unacknowledged and the next to
// be sent, while it recovers from a loss. Without losses there is none: then all of them are under
// way, sent in the order of their PSNs. What follows from it is in requester_recovery.cc.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "core/congestion/congestion_control.h"
#include "wire/psn.h"

namespace verbena::core {

enum class Fate : uint8_t {
  UnderWay,  // sent, and not known to be lost
  Lost,      // to be sent again
  Arrived,   // the peer has the request but waits for one before it; or we have the answer and wait
};

class Scoreboard {
 public:
  struct Entry {
    uint32_t sent = 0;  // its place in the order of all sends, those again included
    Fate fate = Fate::UnderWay;
    bool again = false;        // not for the first time
    bool asked_again = false;  // READ and its like: the answer was, after the request was executed
    uint32_t sent_us = 0;      // when, if again; it wraps
  };

  // [first, next) were sent in this order.
  Scoreboard(wire::Psn first, wire::Psn next)
      : executed(first),
        answered_to(first),
        resent_to(first),
        first_lost_(first),
        ring_(capacity_for(next.distance_from(first))) {
    record_sent(first, next);
  }

  // PSNs that there is room for at a time.
  int32_t capacity() const { return static_cast<int32_t>(ring_.size()); }
  Entry& at(wire::Psn psn) { return ring_[psn.value() & (ring_.size() - 1)]; }

  // New ones.
  void record_sent(wire::Psn first, wire::Psn end) {
    for (wire::Psn psn = first; psn != end; psn = psn + 1) at(psn) = {.sent = ++sends_};
  }
  void record_sent_again(wire::Psn psn, Instant now) {
    Entry& e = at(psn);
    e.sent = ++sends_;
    e.again = true;
    e.sent_us = to_us(now);
    if ((psn + 1).distance_from(resent_to) > 0) resent_to = psn + 1;
  }
  uint32_t sends() const { return sends_; }

  void set_fate(wire::Psn psn, Fate fate) {
    Entry& e = at(psn);
    exceptions_ += (fate != Fate::UnderWay) - (e.fate != Fate::UnderWay);
    lost_ += (fate == Fate::Lost) - (e.fate == Fate::Lost);
    e.fate = fate;
    if (fate == Fate::Lost && (lost_ == 1 || psn.distance_from(first_lost_) < 0)) {
      first_lost_ = psn;
    }
  }
  int32_t lost() const { return lost_; }
  bool anything_lost() const { return lost_ != 0; }
  // The lowest PSN that is lost; there is one, at `unacked` or later.
  wire::Psn first_lost(wire::Psn unacked) {
    if (first_lost_.distance_from(unacked) < 0) first_lost_ = unacked;
    while (at(first_lost_).fate != Fate::Lost) first_lost_ = first_lost_ + 1;
    return first_lost_;
  }
  // Everything from `unacked` on is as it would be without a scoreboard.
  bool over(wire::Psn unacked) const {
    return exceptions_ == 0 && unacked.distance_from(resent_to) >= 0;
  }

  // It arrived, so whatever was sent before it did or never will.
  void know_arrived(wire::Psn psn) {
    if (was_later(at(psn).sent, newest_arrived_)) newest_arrived_ = at(psn).sent;
  }
  // Something that was sent later has arrived. What was sent again is given a round trip's time
  // before anything follows from that: in a network that reorders it may be the first copy that
  // came.
  bool overtaken(wire::Psn psn, Instant now, Duration round_trip) {
    const Entry& e = at(psn);
    if (!was_later(newest_arrived_, e.sent)) return false;
    return !e.again || microseconds(uint32_t{to_us(now) - e.sent_us}) >= round_trip;
  }

  // Numbers of sends, which wrap around on a link that never stops losing.
  static bool was_later(uint32_t sent, uint32_t than) {
    return static_cast<int32_t>(sent - than) > 0;
  }

  wire::Psn executed;     // the peer has executed all requests before this one
  wire::Psn answered_to;  // an answer or acknowledgement of this PSN or the one before it came
  wire::Psn resent_to;    // nothing from here on was sent twice
  // Losses of packets that were sent up to here belong to one episode; 0: there was none.
  uint32_t episode_end = 0;
  LossEpisode episode;

 private:
  static uint32_t to_us(Instant now) { return static_cast<uint32_t>(now.ns / 1000); }
  static size_t capacity_for(int32_t packets) {
    return std::max(std::bit_ceil(2 * static_cast<size_t>(packets)), size_t{1024});
  }

  wire::Psn first_lost_;
  std::vector<Entry> ring_;  // by PSN; its size is a power of two
  int32_t exceptions_ = 0;   // PSNs that are not under way
  int32_t lost_ = 0;
  uint32_t sends_ = 0;
  uint32_t newest_arrived_ = 0;
};

}  // namespace verbena::core
