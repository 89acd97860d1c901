// RoundTripSampler: the packets of a queue pair whose round trips are being measured: a few at a
// time, spread over the round trip. The smallest of several samples shows the path even if a thread
// waits for its CPU now and then.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <optional>

#include "base/time.h"
#include "core/send_cursor.h"

namespace verbena::core {

class RoundTripSampler {
 public:
  static constexpr uint32_t kPackets = 8;

  void on_sent(wire::Psn psn, Instant now) {
    if (count_ != 0 && (count_ == kPackets || now < next_)) return;
    if (packets_ == nullptr) [[unlikely]] {
      packets_.reset(new (std::nothrow) Packet[kPackets]);
      if (packets_ == nullptr) return;
    }
    packets_[(first_ + count_) % kPackets] = {psn, now};
    ++count_;
    next_ = now + interval_;
  }
  // All packets before `psn` have reached the peer. The sample is that of the latest one.
  std::optional<Duration> on_acked_before(wire::Psn psn, Instant now) {
    if (count_ == 0 || !is_before(packets_[first_].psn, psn)) return std::nullopt;
    Instant sent{};
    do {
      sent = packets_[first_].sent;
      remove_first();
    } while (count_ != 0 && is_before(packets_[first_].psn, psn));
    return sample(sent, now);
  }
  // Packets behind a gap have reached the peer: those of which `was_received(psn)` is true. The
  // sample is that of the latest one.
  template <typename WasReceived>
  std::optional<Duration> on_received(const WasReceived& was_received, Instant now) {
    std::optional<Duration> latest;
    for (uint32_t left = count_; left != 0; --left) {
      const Packet packet = packets_[first_];
      remove_first();
      if (was_received(packet.psn)) {
        latest = sample(packet.sent, now);
      } else {
        packets_[(first_ + count_++) % kPackets] = packet;
      }
    }
    return latest;
  }
  // After a retransmission a response could be to either copy.
  void clear() { count_ = 0; }

 private:
  struct Packet {
    wire::Psn psn{0};
    Instant sent{};
  };

  void remove_first() {
    first_ = (first_ + 1) % kPackets;
    --count_;
  }
  Duration sample(Instant sent, Instant now) {
    interval_ = (now - sent) / kPackets;
    return now - sent;
  }

  uint32_t first_ = 0;
  uint32_t count_ = 0;
  Instant next_{};
  Duration interval_{};
  std::unique_ptr<Packet[]> packets_;  // null: nothing was sent over the wire yet
};

}  // namespace verbena::core
