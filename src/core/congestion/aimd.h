// Aimd: additive increase, multiplicative decrease. RoCE expects a lossless network; a default
// socket buffer holds a few bursts of 64 KiB, so losses at that buffer are the signal here.
#pragma once

#include "core/congestion/congestion_control.h"

namespace verbena::core {

class Aimd : public CongestionControl {
 public:
  static constexpr uint32_t kInitialWindow = 192 * 1024;
  static constexpr uint32_t kMinWindow = 32 * 1024;
  static constexpr uint32_t kMaxWindow = kReceiveBufferBytes;
  // About one full packet for each window that was acknowledged.
  static constexpr uint32_t kIncrease = 4096;

  Aimd() : CongestionControl(kInitialWindow) {}

  void on_acked(const AckEvent& event) override;
  void on_lost(const LossEvent& event) override;
  void on_timed_out(Instant now) override;
  void on_cnp(Instant) override {}
  void on_round_trip(Duration, Instant) override {}

 private:
  void decrease(uint32_t bytes);

  uint32_t acked_ = 0;  // bytes since the window last changed
};

// By how much the window shrinks for a loss of `episode`, after what it has shrunk already: twice
// the lost bytes, or all of `max_decrease` if the peer discards the packets behind a loss.
uint32_t decrease_for_loss(const LossEvent& event, uint32_t max_decrease);

}  // namespace verbena::core
