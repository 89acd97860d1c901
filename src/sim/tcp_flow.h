// TcpFlow: a TCP sender with CUBIC (RFC 9438) that competes for a bottleneck. Only what decides its
// share is modelled: slow start, CUBIC's growth and decrease, and the losses that it learns of one
// round trip later.
#pragma once

#include <cstdint>

#include "sim/bottleneck.h"
#include "sim/world.h"

namespace verbena::sim {

class TcpFlow {
 public:
  static constexpr uint64_t kSegmentBytes = 1538;  // with its framing

  // `delay`: from the bottleneck to the receiver and back to the sender.
  TcpFlow(World& world, Bottleneck& bottleneck, Duration delay);
  uint64_t delivered() const { return delivered_; }  // bytes, with their framing

 private:
  void fill_window();
  void on_acked(Instant sent_at);
  void on_lost(Instant sent_at);
  double cubic_window() const;

  World& world_;
  Bottleneck& bottleneck_;
  Duration delay_;
  double window_ = 10;  // segments
  double slow_start_to_ = 1e9;
  double plateau_ = 0;
  double friendly_ = 0;
  Instant shrunk_at_{};
  Duration round_trip_ = milliseconds(1);
  uint64_t in_flight_ = 0;
  uint64_t delivered_ = 0;
  bool is_filling_ = false;
};

}  // namespace verbena::sim
