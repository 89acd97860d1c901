// Dcqcn: the rate of a sender whose network marks packets and whose peer sends CNPs, as RoCE
// hardware limits it (Zhu et al., SIGCOMM 2015). A CNP cuts the rate; without one it recovers: five
// steps back towards the rate before the cut, then additive steps, then growing ones.
//
// DcqcnRate is the rate alone. Dcqcn adds Aimd's window for losses, and takes an ACK that reports a
// mark for a CNP: a Verbena sends no CNPs to a Verbena, except for its first packets.
#pragma once

#include "core/congestion/aimd.h"

namespace verbena::core {

class DcqcnRate {
 public:
  // A CNP, genuine or forged, slows a flow no further than this.
  static constexpr uint64_t kMinRate = 1'250'000;  // bytes per second: 10 Mb/s
  static constexpr uint64_t kMaxRate = 50'000'000'000;
  static constexpr Duration kAlphaPeriod = microseconds(55);
  static constexpr Duration kIncreasePeriod = microseconds(300);
  static constexpr uint32_t kFastRecoverySteps = 5;
  static constexpr uint64_t kAdditiveStep = 5'000'000;  // 40 Mb/s
  static constexpr uint64_t kGrowingStep = 50'000'000;  // 400 Mb/s, more with each step
  // Alpha, the estimate of how congested the path is: in parts of kOne; its gain is 1/256.
  static constexpr uint32_t kOne = 1 << 16;
  static constexpr uint32_t kGainShift = 8;

  bool is_limited() const { return is_limited_; }
  uint64_t rate() const { return is_limited_ ? current_ : CongestionControl::kUnpaced; }

  // `unlimited_rate`: the rate at which packets leave now if none is set.
  void on_cnp(uint64_t unlimited_rate, Instant now);
  // Time passes. Above `unlimited_rate` the rate limits nothing and ends.
  void advance(uint64_t unlimited_rate, Instant now);

 private:
  void increase();

  bool is_limited_ = false;
  uint64_t current_ = 0;
  uint64_t target_ = 0;
  uint32_t alpha_ = kOne;
  uint32_t steps_ = 0;  // increases since the latest CNP
  Instant alpha_due_{};
  Instant increase_due_{};
};

class Dcqcn final : public Aimd {
 public:
  void on_acked(const AckEvent& event) override;
  void on_cnp(Instant now) override;
  void on_round_trip(Duration sample, Instant now) override;

 private:
  uint64_t unlimited_rate() const;

  DcqcnRate rate_;
  Duration round_trip_ = milliseconds(1);
  bool is_measured_ = false;  // the round trip
  Instant next_mark_{};       // earlier marks of ACKs belong to the latest cut
};

// The rate of a sender that only the window limits.
uint64_t rate_of_window(uint32_t window, Duration round_trip);

}  // namespace verbena::core
