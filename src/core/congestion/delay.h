// Delay: the congestion control between two hosts, for paths from a LAN to a WAN.
//
//   signal                     reaction, at most once for each round trip
//   -------------------------  -----------------------------------------------------------------
//   queueing delay > target    the window shrinks by the excess, as in Swift
//   ECN marks                  the window shrinks by half of the marked share, as in DCTCP
//   loss of a full queue       the window shrinks to 7/10, as in CUBIC
//   any other loss             the window shrinks by twice the lost bytes, to 16 KiB at least
//   CNP (other peers only)     the rate is limited, as in DCQCN; before the first round trip is
//                              measured, the window shrinks to half
//   none                       the window grows: slow start, then additive steps, which are small
//                              while there is a queue; at least as CUBIC does
//
// The queueing delay is the smallest round trip of 4 ms, or of a round if that is longer, minus the
// smallest ever, so a thread that waited for its CPU is not mistaken for a queue. An eighth of the
// path's round trip is jitter. Slow flows have a larger target than fast ones, so that flows that
// share a queue come to equal rates.
//
// A flow that begins while others keep a queue does not know the smallest round trip. A flow that
// has not measured it again for a while therefore pauses for a moment. Flows that share a queue
// measure it at the same time, and so come to pause together. The pause also shows whose queue it
// is: if the round trip hardly falls, loss-based flows fill the queue. Until the next pause Verbena
// competes with them then: it ignores delay and grows and shrinks as CUBIC does, however many
// packets of a round are lost.
//
// If the delay stays although the window has shrunk to a quarter, the flow pauses at once. If the
// queue is that of others, the window is restored.
//
// The window may exceed what a receive buffer holds only by what the path itself holds. Below two
// packets the sender is paced, so that a window can be smaller than one packet.
#pragma once

#include <algorithm>
#include <optional>

#include "core/congestion/dcqcn.h"

namespace verbena::core {

class Delay final : public CongestionControl {
 public:
  static constexpr uint32_t kPacketBytes = 1500;  // the unit of growth
  static constexpr uint32_t kInitialWindow = 16 * 1024;
  // The initial window, if packets are large. With ten, as TCP, an incast of 64 senders would not
  // fit into a queue of 2 MB.
  static constexpr uint32_t kInitialPackets = 7;
  static constexpr uint32_t kMinWindow = 128;
  static constexpr uint32_t kMaxWindow = 128 * 1024 * 1024;  // 10 Gb/s at 100 ms
  // The target of a fast flow, and the most of a slow one.
  static constexpr Duration kTarget = microseconds(500);
  static constexpr Duration kMaxTarget = milliseconds(2);
  // The least, where the queue is short: half of the delay at which it overflowed.
  static constexpr Duration kMinTarget = microseconds(150);

  Delay() : CongestionControl(kInitialWindow) {}

  void set_packet_bytes(uint32_t bytes) override {
    window_ = std::max(kInitialWindow, kInitialPackets * bytes);
  }
  void on_acked(const AckEvent& event) override;
  void on_lost(const LossEvent& event) override;
  void on_timed_out(Instant now) override;
  void on_cnp(Instant now) override;
  void on_round_trip(Duration sample, Instant now) override;

  bool ignores_delay() const { return ignores_delay_; }
  bool is_pausing() const { return after_pause_ != 0; }

 private:
  static constexpr Duration kUnknown{INT64_MAX};
  // What happened since the round began. A round lasts one round trip.
  struct Round {
    Instant end{};
    Instant begin{};
    uint64_t acked = 0;  // bytes
    uint64_t marked = 0;
    uint64_t lost = 0;
    bool limited = false;          // the window limited the sender
    Duration smallest = kUnknown;  // of its round trips
  };

  void end_round(Instant now);
  void judge_delay(Instant now);
  void measure_shares();
  void on_queueing(Duration queueing, Instant now);
  void follow_queue(Duration queueing, Duration target, Instant now);
  Duration target() const;
  Duration jitter() const;

  void grow(const AckEvent& event);
  uint32_t growth(Instant now) const;
  bool is_empty(Instant now) const;
  uint64_t cubic_window(Instant now) const;
  uint64_t limit() const;
  // The window shrinks to `window` and grows slowly from there.
  void shrink_to(uint64_t window, Instant now);
  bool may_shrink(Instant now) const { return now - changed_at_ >= smoothed_; }
  // A pause has shown that loss-based flows fill the queue.
  bool competes() const { return others_fill_queue_.value_or(false); }
  static bool is_recent(const std::optional<Instant>& at, Instant now);
  bool loses_much() const;
  void pause_if_due(Instant now);
  void pause(Instant now);
  void end_pause(Instant now);
  bool has_emptied_queue() const;
  Duration pause_interval() const;
  void update_rate(Instant now);

  Round round_;
  struct {
    Instant begin{};
    Duration smallest = kUnknown;
  } judged_;                  // the rounds since delay last changed the window, or could have
  Duration base_ = kUnknown;  // the smallest round trip ever
  Duration smoothed_ = milliseconds(1);
  Duration queueing_{};  // of the latest sample
  Duration max_target_ = kMaxTarget;
  uint64_t delivery_rate_ = 0;  // bytes per second, of the latest rounds

  uint32_t slow_start_to_ = UINT32_MAX;
  uint32_t acked_ = 0;            // bytes since the window last grew
  uint32_t marked_share_ = 1024;  // DCTCP's alpha, in parts of 1024
  uint32_t lost_share_ = 0;       // in parts of 65536
  uint32_t empty_rounds_ = 0;     // in a row, almost without queueing
  Instant empty_since_{};
  std::optional<Instant> overflowed_at_;
  std::optional<Instant> marked_at_;
  std::optional<Instant> queued_at_;  // the queue was last long, or marked packets

  // CUBIC: the window before it shrank, when that was, and how long it takes to be reached again.
  struct Cubic {
    uint32_t plateau = 0;
    Instant begin{};
    Duration to_plateau{};
  };
  Cubic cubic_;
  Instant changed_at_{};  // the window: earlier packets say nothing about the effect

  // The window before delay began to shrink it (0: delay does not shrink it now), and its growth.
  uint32_t before_delay_ = 0;
  Cubic cubic_before_delay_;
  bool ignores_delay_ = false;
  Instant ignores_until_{};

  // The window after the pause; 0: there is none now.
  uint32_t after_pause_ = 0;
  Instant pause_end_{};
  Duration smallest_in_pause_ = kUnknown;
  Duration round_trip_before_pause_{};
  Duration base_before_pause_{};
  std::optional<bool> others_fill_queue_;  // what the latest pause has shown
  Instant confirmed_at_{};                 // base_ was measured, or the latest pause ended

  DcqcnRate cnp_rate_;
};

}  // namespace verbena::core
