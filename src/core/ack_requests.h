// AckRequests: which packets of a requester ask for an ACK (the A bit of the BTH). The requester
// reports each packet of a SEND or WRITE. READs and atomics always ask. When the peer sends the ACK
// is decided there, by its AckScheduler.
//
// Rules: a packet asks if
// - it ends a message, because the application waits for the completion;
// - it is the eighth since the last that asked, so that the window keeps moving;
// - it fills the window, which only an ACK opens again;
// - it ends a burst: other queue pairs may fill the window before this one sends again;
// - the rate limit is so low that the next packet may follow after the ACK timeout.
#pragma once

#include <cstdint>

namespace verbena::core {

class AckRequests {
 public:
  static constexpr uint32_t kMaxPacketsPerRequest = 8;
  // Below this rate eight packets take a millisecond or more.
  static constexpr uint32_t kSlowKbps = 250'000;

  // A packet of a SEND or WRITE that is about to leave.
  struct Packet {
    bool ends_message = false;
    // The last of a turn, of a size-sorted batch or of the lost packets, or a tail-loss probe.
    bool ends_burst = false;
    bool fills_window = false;
    uint32_t rate_limit_kbps = 0;  // 0: none
  };
  // Whether this packet, the next that leaves, asks for an ACK.
  bool next(const Packet& packet) {
    ++packets_;
    const bool is_slow = packet.rate_limit_kbps != 0 && packet.rate_limit_kbps < kSlowKbps;
    const bool asks = packet.ends_message || packet.ends_burst || is_slow ||
                      packets_ >= kMaxPacketsPerRequest || packet.fills_window;
    if (asks) packets_ = 0;
    return asks;
  }
  // Packets that have left count no more: they are retransmitted or retracted.
  void restart() { packets_ = 0; }

 private:
  uint32_t packets_ = 0;  // since the last that asked
};

}  // namespace verbena::core
