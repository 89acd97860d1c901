// FixedWindow: no congestion control. Shared memory loses no packets; there the window only keeps a
// ring from filling up. On the wire it keeps a socket buffer of the default size from overflowing.
#pragma once

#include "core/congestion/congestion_control.h"

namespace verbena::core {

class FixedWindow final : public CongestionControl {
 public:
  // The requests and responses of both directions fit into one mebibyte.
  static constexpr uint32_t kWindow = 448 * 1024;

  explicit FixedWindow(uint32_t window = kWindow) : CongestionControl(window) {}

  void on_acked(const AckEvent&) override {}
  void on_lost(const LossEvent&) override {}
  void on_timed_out(Instant) override {}
  void on_cnp(Instant) override {}
  void on_round_trip(Duration, Instant) override {}
};

}  // namespace verbena::core
