// The cut for a CNP, and the recovery afterwards.
#include "core/congestion/dcqcn.h"

#include <algorithm>
#include <utility>

#include "core/notification_point.h"

namespace verbena::core {

std::unique_ptr<CongestionControl> make_dcqcn() { return std::make_unique<Dcqcn>(); }

uint64_t rate_of_window(uint32_t window, Duration round_trip) {
  const auto ns = static_cast<uint64_t>(std::max<int64_t>(round_trip.ns, 1000));
  return std::min(uint64_t{window} * 1'000'000'000 / ns, DcqcnRate::kMaxRate);
}

void DcqcnRate::on_cnp(uint64_t unlimited_rate, Instant now) {
  if (!is_limited_) {
    is_limited_ = true;
    current_ = unlimited_rate;
    alpha_ = kOne;
  }
  target_ = current_;
  current_ = std::max(current_ - current_ / 2 * alpha_ / kOne, kMinRate);
  alpha_ = alpha_ - (alpha_ >> kGainShift) + (kOne >> kGainShift);
  steps_ = 0;
  alpha_due_ = now + kAlphaPeriod;
  increase_due_ = now + kIncreasePeriod;
}

void DcqcnRate::advance(uint64_t unlimited_rate, Instant now) {
  if (!is_limited_) return;
  // After a long silence both have reached their ends within this many periods.
  constexpr int kMaxPeriods = 2048;
  for (int i = 0; i < kMaxPeriods && alpha_due_ <= now; ++i) {
    alpha_ -= alpha_ >> kGainShift;
    alpha_due_ = alpha_due_ + kAlphaPeriod;
  }
  for (int i = 0; i < kMaxPeriods && increase_due_ <= now; ++i) {
    increase();
    increase_due_ = increase_due_ + kIncreasePeriod;
  }
  alpha_due_ = std::max(alpha_due_, now);
  increase_due_ = std::max(increase_due_, now);
  if (current_ >= 2 * unlimited_rate || current_ >= kMaxRate) is_limited_ = false;
}

void DcqcnRate::increase() {
  ++steps_;
  if (steps_ > 2 * kFastRecoverySteps) {
    target_ += kGrowingStep * (steps_ - 2 * kFastRecoverySteps);
  } else if (steps_ > kFastRecoverySteps) {
    target_ += kAdditiveStep;
  }
  target_ = std::min(target_, kMaxRate);
  current_ = (current_ + target_ + 1) / 2;
}

uint64_t Dcqcn::unlimited_rate() const { return rate_of_window(window_, round_trip_); }

void Dcqcn::on_acked(const AckEvent& event) {
  Aimd::on_acked(event);
  if (event.marked && event.now >= next_mark_) on_cnp(event.now);
  rate_.advance(unlimited_rate(), event.now);
  pacing_rate_ = rate_.rate();
}

void Dcqcn::on_cnp(Instant now) {
  next_mark_ = now + NotificationPoint::kInterval;
  rate_.on_cnp(unlimited_rate(), now);
  pacing_rate_ = rate_.rate();
}

void Dcqcn::on_round_trip(Duration sample, Instant) {
  if (!std::exchange(is_measured_, true)) round_trip_ = sample;
  round_trip_ = round_trip_ + (sample - round_trip_) / 8;
}

}  // namespace verbena::core
