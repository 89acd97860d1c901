// Pacer: limits a queue pair to the rate that the application chose. A token bucket: a packet may
// leave while the bucket is not empty, so even a packet larger than the bucket can leave. Once
// empty, the pacer opens again when the bucket is half full: with a timer for each packet, the
// timers would limit the rate.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"
#include "wire/packet_io.h"

namespace verbena::core {

inline constexpr uint32_t kMinRateKbps = 64;
inline constexpr uint32_t kMaxRateKbps = 400'000'000;  // 400 Gb/s

class Pacer {
 public:
  // kbps 0: no limit. burst_bytes 0: the bytes of one millisecond.
  void set(uint32_t kbps, uint32_t burst_bytes) {
    kbps_ = kbps;
    depth_ = burst_bytes == 0 || kbps == 0 ? milliseconds(1) : time_for(burst_bytes);
    empty_ = false;
  }
  bool limited() const { return kbps_ != 0; }
  uint32_t kbps() const { return kbps_; }

  bool open(Instant now) {
    if (!limited()) return true;
    empty_ = empty_ ? now < reopens_at() : full_at_ > now + depth_;
    return !empty_;
  }
  // When open() will be true again after it was false.
  Instant reopens_at() const { return full_at_ - depth_ / 2; }

  void sent(uint64_t bytes, Instant now) {
    if (!limited()) return;
    full_at_ = std::max(full_at_, now) + time_for(bytes);
  }

 private:
  Duration time_for(uint64_t bytes) const {
    return nanoseconds(static_cast<int64_t>(bytes * 8'000'000 / kbps_));
  }

  uint32_t kbps_ = 0;
  Duration depth_{};   // the size of the bucket, as time
  Instant full_at_{};  // when the bucket will be full again
  bool empty_ = false;
};

// A sink that is full while the pacer is closed, and counts the bytes that it passes on.
class PacedSink final : public wire::PacketSink {
 public:
  PacedSink(wire::PacketSink& inner, Pacer& pacer, Instant now)
      : inner_(inner), pacer_(pacer), now_(now) {}

  size_t room() const override { return pacer_.open(now_) ? inner_.room() : 0; }
  void push(const wire::TxPacket& packet) override {
    size_t bytes = kIpUdpIcrcBytes + packet.header_bytes + packet.pad;
    for (const auto& area : packet.payload) bytes += area.size();
    pacer_.sent(bytes, now_);
    inner_.push(packet);
  }

 private:
  static constexpr size_t kIpUdpIcrcBytes = 20 + 8 + 4;

  wire::PacketSink& inner_;
  Pacer& pacer_;
  Instant now_;
};

}  // namespace verbena::core
