// PeerPath: the state that all queue pairs to one lane of a peer share: the bytes in flight, the
// queue pairs that wait for the window, the measured round trip, and congestion control.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/congestion/congestion_control.h"
#include "core/congestion/fixed_window.h"
#include "core/round_trip.h"
#include "core/waiting_list.h"
#include "wire/identifiers.h"

namespace verbena::core {

class PeerPath {
 public:
  // A receive buffer of the kernel charges each packet more than its bytes.
  static constexpr uint32_t kPacketOverhead = 256;
  // The most bytes of READ responses that may be outstanding. The peer sends them without a window,
  // and they must fit into a socket buffer of the default size.
  static constexpr uint32_t kMaxResponseBytes = 320 * 1024;

  explicit PeerPath(const CongestionAlgorithm& algorithm = kDefaultCongestionAlgorithm)
      : algorithm_(algorithm), on_wire_(algorithm.make()) {
    use(*on_wire_);
  }
  PeerPath(const PeerPath&) = delete;
  PeerPath& operator=(const PeerPath&) = delete;

  // The path MTU. Called before the first packet.
  void set_payload_bytes(uint32_t bytes) {
    on_wire_->set_packet_bytes(bytes + kPacketOverhead);
    adopt();
  }

  // Packets go through shared memory from now on. The congestion control for a return to the wire
  // is allocated here, because use_wire() must not fail.
  void use_shared_memory() {
    if (is_in_memory()) return;
    on_wire_ = algorithm_.make();
    use(in_memory_);
  }
  void use_wire() { use(*on_wire_); }
  bool is_in_memory() const { return control_ == &in_memory_; }

  // Bytes that count against the window include kPacketOverhead for each packet.
  bool has_room() const { return in_flight_ < allowed_; }
  uint32_t room() const { return has_room() ? allowed_ - in_flight_ : 0; }
  // After a packet of this cost, none may leave before an ACK, or before the rate allows it.
  bool fills(uint32_t bytes) const { return room() <= bytes || has_rate(); }
  uint32_t window() const { return window_; }
  uint32_t in_flight() const { return in_flight_; }
  bool is_idle() const { return in_flight_ == 0; }

  void on_sent(uint32_t bytes) {
    in_flight_ += bytes;
    if (has_rate()) [[unlikely]]
      pace(bytes);
  }
  // No longer in flight and not acknowledged: lost, retracted, or their queue pair is gone.
  void release(uint32_t bytes) { in_flight_ -= std::min(bytes, in_flight_); }

  // The events that congestion control learns of.
  void on_acked(uint32_t bytes, bool marked, Instant now) {
    const uint32_t before = in_flight_;
    release(bytes);
    if (is_in_memory()) return;  // the window is fixed
    control_->on_acked({.bytes = bytes, .in_flight = before, .marked = marked, .now = now});
    adopt();
  }
  void on_lost(const LossEvent& event) {
    round_trip.on_lost();
    control_->on_lost(event);
    adopt();
  }
  void on_timed_out(Instant now) {
    control_->on_timed_out(now);
    adopt();
  }
  void on_cnp(Instant now) {
    control_->on_cnp(now);
    adopt();
  }
  void on_round_trip(Duration sample, Instant now) {
    round_trip.on_sample(sample);
    control_->on_round_trip(sample, now);
    adopt();
  }

  // Pacing: after a burst of kBurst or one packet, nothing leaves until the rate allows more.
  static constexpr Duration kBurst = microseconds(250);
  bool has_rate() const { return rate_ != CongestionControl::kUnpaced; }
  bool is_paced() const { return is_shut_; }
  Instant reopens_at() const { return reopens_at_; }
  void reopen_if_due(Instant now) {
    if (!is_shut_ || now < reopens_at_) return;
    is_shut_ = false;
    burst_bytes_ = 0;
    burst_began_ = now;
    adopt();
  }

  // The peer has read nothing for long. Requests use one-sided access until it responds.
  bool is_unresponsive(Instant now) const { return now < unresponsive_until; }
  Instant unresponsive_until{};

  RoundTrip round_trip;
  wire::Gid destination;
  uint8_t slot = 0;
  uint32_t users = 0;
  WaitingList waiting;          // queue pairs that want to send
  uint32_t reserved_bytes = 0;  // for queue pairs that were woken and have not sent yet

 private:
  void use(CongestionControl& control) {
    control_ = &control;
    is_shut_ = false;
    adopt();
  }
  void adopt() {
    window_ = control_->window();
    rate_ = control_->pacing_rate();
    allowed_ = is_shut_ ? 0 : window_;
  }
  void pace(uint32_t bytes) {
    burst_bytes_ += bytes;
    const uint64_t burst = rate_ / 1'000'000 * static_cast<uint64_t>(kBurst.ns / 1000);
    if (burst_bytes_ < burst) return;
    const uint64_t ns = uint64_t{burst_bytes_} * 1'000'000'000 / std::max<uint64_t>(rate_, 1);
    reopens_at_ = burst_began_ + nanoseconds(static_cast<int64_t>(ns));
    is_shut_ = true;
    allowed_ = 0;
  }

  const CongestionAlgorithm& algorithm_;
  std::unique_ptr<CongestionControl> on_wire_;
  FixedWindow in_memory_;
  CongestionControl* control_ = nullptr;  // the one in use
  uint32_t window_ = 0;                   // its latest values
  uint64_t rate_ = CongestionControl::kUnpaced;
  uint32_t allowed_ = 0;  // the window, or nothing while pacing shuts the path
  uint32_t in_flight_ = 0;

  bool is_shut_ = false;
  uint32_t burst_bytes_ = 0;
  Instant burst_began_{};
  Instant reopens_at_{};
};

}  // namespace verbena::core
