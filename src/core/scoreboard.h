// Scoreboard: the state of each outstanding PSN during recovery from a loss. Without losses there
// is no scoreboard: all packets are in flight and were sent in PSN order. loss_recovery.cc draws
// the conclusions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "core/congestion/congestion_control.h"
#include "wire/psn.h"

namespace verbena::core {

enum class PacketState : uint8_t {
  InFlight,  // sent, and not known to be lost
  Lost,      // to be retransmitted
  // The peer has buffered the request, or the response is buffered here: one before it is missing.
  Received,
};

class Scoreboard {
 public:
  struct Entry {
    uint32_t sent = 0;  // its position among all sends, retransmissions included
    PacketState state = PacketState::InFlight;
    bool is_retransmit = false;
    // READ and atomics: the request was executed, and its response was requested again since.
    bool is_requested_again = false;
    uint32_t sent_us = 0;  // the time of a retransmission; wraps
  };

  // [first, next) were sent in this order.
  Scoreboard(wire::Psn first, wire::Psn next)
      : executed(first),
        responded_to(first),
        retransmitted_to(first),
        first_lost_(first),
        ring_(capacity_for(next.distance_from(first))) {
    record_sent(first, next);
  }

  // The most outstanding PSNs.
  int32_t capacity() const { return static_cast<int32_t>(ring_.size()); }
  Entry& at(wire::Psn psn) { return ring_[psn.value() & (ring_.size() - 1)]; }

  // Adds new PSNs.
  void record_sent(wire::Psn first, wire::Psn end) {
    for (wire::Psn psn = first; psn != end; psn = psn + 1) at(psn) = {.sent = ++sends_};
  }
  void record_retransmit(wire::Psn psn, Instant now) {
    Entry& e = at(psn);
    e.sent = ++sends_;
    e.is_retransmit = true;
    e.sent_us = to_us(now);
    if ((psn + 1).distance_from(retransmitted_to) > 0) retransmitted_to = psn + 1;
  }
  uint32_t sends() const { return sends_; }

  void set_state(wire::Psn psn, PacketState state) {
    Entry& e = at(psn);
    exceptions_ += (state != PacketState::InFlight) - (e.state != PacketState::InFlight);
    lost_ += (state == PacketState::Lost) - (e.state == PacketState::Lost);
    e.state = state;
    if (state == PacketState::Lost && (lost_ == 1 || psn.distance_from(first_lost_) < 0)) {
      first_lost_ = psn;
    }
  }
  int32_t lost() const { return lost_; }
  bool has_lost() const { return lost_ != 0; }
  // The lowest lost PSN, which is `unacked` or later. There is one.
  wire::Psn first_lost(wire::Psn unacked) {
    if (first_lost_.distance_from(unacked) < 0) first_lost_ = unacked;
    while (at(first_lost_).state != PacketState::Lost) first_lost_ = first_lost_ + 1;
    return first_lost_;
  }
  // All PSNs from `unacked` on are in flight and were sent once, as without a scoreboard.
  bool is_over(wire::Psn unacked) const {
    return exceptions_ == 0 && unacked.distance_from(retransmitted_to) >= 0;
  }

  // The packet reached the peer, so each packet that was sent before it did as well or is lost.
  void record_received(wire::Psn psn) {
    const Entry& e = at(psn);
    if (was_later(e.sent, newest_received_)) newest_received_ = e.sent;
    if (!e.is_retransmit && was_later(e.sent, newest_sent_once_)) newest_sent_once_ = e.sent;
  }
  // A packet that was sent later has reached the peer. A retransmitted packet has one round trip
  // first: in a network that reorders, its first copy may be the one that was received.
  bool is_overtaken(wire::Psn psn, Instant now, Duration round_trip) {
    const Entry& e = at(psn);
    if (!was_later(newest_received_, e.sent)) return false;
    return !e.is_retransmit || microseconds(uint32_t{to_us(now) - e.sent_us}) >= round_trip;
  }

  // Only retransmitted packets overtook it. Perhaps their first copies were received, and all
  // retransmissions wait in a queue of the network.
  bool may_be_queued(wire::Psn psn) const {
    return !was_later(newest_sent_once_, ring_[psn.value() & (ring_.size() - 1)].sent);
  }

  // Positions wrap around on a path that never stops losing packets.
  static bool was_later(uint32_t sent, uint32_t than) {
    return static_cast<int32_t>(sent - than) > 0;
  }

  wire::Psn executed;      // the peer has executed all requests before this one
  wire::Psn responded_to;  // a response to this PSN, or an ACK of the one before it, was received
  wire::Psn retransmitted_to;  // nothing from here on was retransmitted
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
  int32_t exceptions_ = 0;   // PSNs that are not in flight
  int32_t lost_ = 0;
  uint32_t sends_ = 0;
  uint32_t newest_received_ = 0;   // the latest send that reached the peer
  uint32_t newest_sent_once_ = 0;  // the latest of those without a retransmission
};

}  // namespace verbena::core
