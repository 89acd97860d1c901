// CUBIC's window.
#include "sim/tcp_flow.h"

#include <algorithm>
#include <cmath>

namespace verbena::sim {
namespace {

constexpr double kCubicConstant = 0.4;  // segments per cubic second
constexpr double kDecrease = 0.7;
constexpr double kFriendlyGrowth = 3 * (1 - kDecrease) / (1 + kDecrease);
// Linux sends no more than this many segments back to back.
constexpr uint64_t kMaxBurst = 10;
constexpr Duration kRetryAfter = milliseconds(1);

double to_seconds(Duration d) { return static_cast<double>(d.ns) / 1e9; }

}  // namespace

TcpFlow::TcpFlow(World& world, Bottleneck& bottleneck, Duration delay)
    : world_(world), bottleneck_(bottleneck), delay_(delay) {
  world_.after({}, [this] { fill_window(); });
}

void TcpFlow::fill_window() {
  is_filling_ = false;
  for (uint64_t burst = 0; static_cast<double>(in_flight_) < window_ && burst < kMaxBurst;
       ++burst) {
    ++in_flight_;
    const Instant now = world_.now();
    const auto passage = bottleneck_.enqueue(kSegmentBytes, false, now);
    if (passage) {
      world_.at(passage->leaves + delay_, [this, now] { on_acked(now); });
    } else {
      world_.after(round_trip_, [this, now] { on_lost(now); });
    }
  }
  if (static_cast<double>(in_flight_) < window_ && !is_filling_) {
    is_filling_ = true;
    world_.after(kRetryAfter, [this] { fill_window(); });
  }
}

double TcpFlow::cubic_window() const {
  const double k = std::cbrt(plateau_ * (1 - kDecrease) / kCubicConstant);
  const double t = to_seconds(world_.now() - shrunk_at_ + round_trip_) - k;
  return kCubicConstant * t * t * t + plateau_;
}

void TcpFlow::on_acked(Instant sent_at) {
  --in_flight_;
  delivered_ += kSegmentBytes;
  const Duration sample = world_.now() - sent_at;
  round_trip_ = round_trip_ + (sample - round_trip_) / 8;
  if (window_ < slow_start_to_) {
    window_ += 1;
  } else {
    friendly_ += kFriendlyGrowth / window_;
    const double cubic = std::clamp(cubic_window(), window_, window_ * 1.5);
    window_ += (cubic - window_) / window_;
    window_ = std::max(window_, friendly_);
  }
  fill_window();
}

void TcpFlow::on_lost(Instant sent_at) {
  --in_flight_;
  if (sent_at >= shrunk_at_) {  // one decrease for each window
    plateau_ = window_;
    window_ = std::max(window_ * kDecrease, 2.0);
    slow_start_to_ = friendly_ = window_;
    shrunk_at_ = world_.now();
  }
  fill_window();
}

}  // namespace verbena::sim
