// FixedWindow: no congestion control. Shared memory loses no packets; the window only keeps a ring
// from filling up.
#pragma once

#include "core/congestion/congestion_control.h"

namespace verbena::core {

class FixedWindow final : public CongestionControl {
 public:
  // The requests and responses of both directions fit into one mebibyte.
  static constexpr uint32_t kWindow = 448 * 1024;

  FixedWindow() : CongestionControl(kWindow) {}

  void on_acked(uint32_t, Instant) override {}
  void on_lost(const LossEvent&) override {}
  void on_timed_out(Instant) override {}
  void on_marked(Instant) override {}
  void on_round_trip(Duration, Instant) override {}
};

}  // namespace verbena::core
