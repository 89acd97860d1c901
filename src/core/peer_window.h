// PeerWindow: how much may be under way to one process, shared by all queue pairs connected to it.
// RoCE expects a lossless network; here a default socket buffer holds a few 64 KiB bursts, so what
// is sent must wait for what was acknowledged. Additive increase, multiplicative decrease.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/round_trip.h"
#include "core/waiting_list.h"
#include "wire/identifiers.h"

namespace verbena::core {

class QueuePair;

class PeerWindow {
 public:
  // A receiver's buffer charges each packet more than its bytes.
  static constexpr uint32_t kPacketOverhead = 256;
  static constexpr uint32_t kInitial = 192 * 1024;
  static constexpr uint32_t kMin = 32 * 1024;
  static constexpr uint32_t kMax = 320 * 1024;

  // Through memory nothing is lost, and the window only keeps the way from filling: what both sides
  // send, and answer, fits into a mebibyte.
  static constexpr uint32_t kInMemory = 448 * 1024;

  void widen() { limit_ = least_ = most_ = kInMemory; }
  // Back to what the wire takes.
  void narrow() {
    if (!in_memory()) return;
    limit_ = kInitial;
    least_ = kMin;
    most_ = kMax;
  }
  bool in_memory() const { return most_ == kInMemory; }

  bool open() const { return in_flight_ < limit_; }
  uint32_t room() const { return open() ? limit_ - in_flight_ : 0; }
  uint32_t limit() const { return limit_; }
  uint32_t in_flight() const { return in_flight_; }
  bool idle() const { return in_flight_ == 0; }

  void sent(uint32_t cost) { in_flight_ += cost; }
  void acknowledged(uint32_t cost) {
    release(cost);
    // About one full packet more for each whole window that got through.
    credit_ += cost;
    if (credit_ >= limit_) {
      credit_ = 0;
      limit_ = std::min(limit_ + 4096, most_);
    }
  }
  // Given up on (retransmission will charge it anew, or its queue pair is gone).
  void release(uint32_t cost) { in_flight_ -= std::min(cost, in_flight_); }
  // What follows a loss is mostly for nothing: a good step back.
  void lost() { shrink(most_at_once()); }
  // At most this for losses that happened together.
  uint32_t most_at_once() const { return limit_ / 4; }
  void shrink(uint32_t bytes) {
    limit_ = std::max(limit_ - std::min(bytes, limit_), least_);
    credit_ = 0;
  }

  // The peer has taken nothing for long: what can be done without it is, until it shows again.
  bool stuck(Instant now) const { return now < stuck_until; }
  Instant stuck_until{};

  RoundTrip round_trip;
  wire::Gid destination;
  uint8_t slot = 0;
  uint32_t users = 0;
  WaitingList waiting;    // want to send
  uint32_t promised = 0;  // room of those who were woken and have not sent yet

 private:
  uint32_t limit_ = kInitial;
  uint32_t least_ = kMin;
  uint32_t most_ = kMax;
  uint32_t in_flight_ = 0;
  uint32_t credit_ = 0;
};

}  // namespace verbena::core
