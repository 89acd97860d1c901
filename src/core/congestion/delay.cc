// The window's growth, and its reactions to delay, ECN marks and losses.
#include "core/congestion/delay.h"

#include <algorithm>
#include <utility>

namespace verbena::core {
namespace {

// CUBIC's constant, 0.4 packets per cubic second, in bytes per cubic millisecond: 6 / 10^7.
constexpr int64_t kCubicNumerator = 6;
constexpr int64_t kCubicDenominator = 10'000'000;
constexpr int64_t kMaxCubicMs = 100'000;

// Growth for each round trip, in bytes. Beside loss-based flows: Reno's share at CUBIC's decrease
// to 7/10, as a window counts it that includes PeerPath's overhead. With a queue: many flows
// together must not fill it in a few round trips.
constexpr uint32_t kFairGrowth = 930;
constexpr uint32_t kGrowthWithQueue = 192;
constexpr uint32_t kGrowthWithLosses = 250'000;  // divided by the window: large flows grow less
// After so many rounds with an empty queue the window grows by a part of itself, unless the other
// flows have just paused.
constexpr uint32_t kEmptyRounds = 4;

// A flow's target grows by the time that this many bytes take at its rate.
constexpr uint64_t kSlowFlowBytes = 800;
// More than this share of lost packets is congestion, whatever the delay: 1/8 %.
constexpr uint32_t kMuchLost = 65536 / 800;
// On a long path, where a window holds many packets and the link itself loses some: 1 %.
constexpr uint32_t kMuchLostOnLongPath = 65536 / 100;
constexpr Duration kLongPath = milliseconds(4);
// Beside TCP: an overflow drops a burst, which is one sign of congestion. TCP loses a packet or
// two.
constexpr uint64_t kMostCounted = 2 * Delay::kPacketBytes;
// So long after an overflow, or a long queue, an empty one may be the pause of others.
constexpr Duration kAfterQueue = seconds(1);

// Pauses: how long no round trip was as short as the smallest, and how long they last.
constexpr Duration kPauseAfter = seconds(1);
constexpr Duration kPauseAfterLosses = milliseconds(100);
constexpr int64_t kRoundTripsBetweenPauses = 512;
// A long round trip may be that of a queue that was there before the flow.
constexpr int64_t kRoundTripsToFirstPause = 32;
// A thread that can run waits at most about this long for a CPU.
constexpr Duration kLongestStall = milliseconds(4);
// Below this round trip no queue matters, so losses without delay have other causes.
constexpr Duration kLeastQueued = microseconds(400);
constexpr Duration kPause = milliseconds(8);
// Less queueing than this is none.
constexpr Duration kEmptyQueue = microseconds(50);

int64_t cube_root(int64_t value) {
  int64_t root = 0;
  for (int64_t step = int64_t{1} << 17; step != 0; step /= 2) {
    const int64_t next = root + step;
    if (next <= 200'000 && next * next * next <= value) root = next;
  }
  return root;
}

}  // namespace

std::unique_ptr<CongestionControl> make_delay() { return std::make_unique<Delay>(); }

// --- events --------------------------------------------------------------------------------------

void Delay::on_acked(const AckEvent& event) {
  round_.acked += event.bytes;
  if (event.marked) {
    round_.marked += event.bytes;
    slow_start_to_ = std::min(slow_start_to_, window_);
  }
  if (is_pausing()) {
    if (event.now >= pause_end_) end_pause(event.now);
  } else {
    grow(event);
  }
  if (event.now >= round_.end) end_round(event.now);
  if (cnp_rate_.is_limited() || pacing_rate_ != kUnpaced) update_rate(event.now);
}

void Delay::on_round_trip(Duration sample, Instant now) {
  if (base_ == kUnknown) {
    smoothed_ = sample;
    round_.end = std::min(round_.end, now + sample);  // it began with a guess of the round trip
  }
  smoothed_ = smoothed_ + (sample - smoothed_) / 8;
  const bool is_smallest = sample <= base_;
  base_ = std::min(base_, sample);
  queueing_ = sample - base_;
  if (is_smallest || (!competes() && queueing_ < kEmptyQueue)) confirmed_at_ = now;
  if (now - sample >= changed_at_) {
    round_.smallest = std::min(round_.smallest, sample);
    if (is_pausing()) smallest_in_pause_ = std::min(smallest_in_pause_, sample);
  }
  if (now >= round_.end) end_round(now);
}

void Delay::on_lost(const LossEvent& event) {
  round_.lost += event.bytes;
  if (queueing_ < kMinTarget + jitter() && !loses_much()) {
    if (is_pausing()) return;
    const uint32_t bytes = decrease_for_loss(event, event.episode.window / 4);
    const uint32_t least = std::min(window_, kInitialWindow);
    window_ = std::max(window_ - std::min(bytes, window_), least);
    slow_start_to_ = std::min(slow_start_to_, window_);
    return;
  }
  overflowed_at_ = event.now;
  if (smoothed_ >= kLeastQueued) queued_at_ = event.now;
  if (event.episode.bytes_lost != 0) return;
  max_target_ = std::clamp(queueing_ / 2, kMinTarget, kMaxTarget);
  // The smoothed round trip lags behind a queue that fills fast.
  const Duration round_trip =
      base_ == kUnknown ? smoothed_ : std::max(smoothed_, base_ + queueing_);
  if (event.now - changed_at_ < round_trip) return;
  shrink_to(uint64_t{window_} * 7 / 10, event.now);
}

void Delay::on_timed_out(Instant now) { shrink_to(window_ / 2, now); }

void Delay::on_cnp(Instant now) {
  if (base_ == kUnknown) {  // so the rate of the window is unknown, too
    if (may_shrink(now)) shrink_to(window_ / 2, now);
    return;
  }
  cnp_rate_.on_cnp(rate_of_window(window_, smoothed_), now);
  update_rate(now);
}

// --- a round -------------------------------------------------------------------------------------

void Delay::end_round(Instant now) {
  const Duration lasted = now - round_.begin;
  if (round_.acked != 0 && lasted.ns > 0) {
    const uint64_t rate = round_.acked * 1'000'000'000 / static_cast<uint64_t>(lasted.ns);
    delivery_rate_ = std::max(rate, delivery_rate_ - delivery_rate_ / 4);
  }
  measure_shares();
  if (!is_pausing()) {
    if (round_.marked != 0) {
      if (may_shrink(now)) shrink_to(window_ - uint64_t{window_} * marked_share_ / 2048, now);
      // The queue keeps itself short, so delay needs no reaction, and others cannot fill it.
      before_delay_ = empty_rounds_ = 0;
      ignores_delay_ = false;
      marked_at_ = now;
      if (smoothed_ >= kLeastQueued) queued_at_ = now;
    }
    judge_delay(now);
    pause_if_due(now);
  }
  round_ = {.end = now + smoothed_, .begin = now};
}

// A sign of a queue ends slow start at once. The window shrinks only if the queue was there for
// longer than a thread waits for its CPU.
void Delay::judge_delay(Instant now) {
  if (round_.smallest == kUnknown) return;
  const bool is_slow_start = window_ < slow_start_to_;
  if (is_slow_start && round_.smallest - base_ > target() && !ignores_delay_) {
    slow_start_to_ = window_;
  }
  const bool is_nearly_empty =
      round_.smallest - base_ < target() / 4 && !is_recent(overflowed_at_, now);
  empty_rounds_ = is_nearly_empty ? empty_rounds_ + 1 : 0;
  if (empty_rounds_ == 1) empty_since_ = now;
  judged_.smallest = std::min(judged_.smallest, round_.smallest);
  if (now - judged_.begin < kLongestStall) return;
  on_queueing(judged_.smallest - base_, now);
  judged_ = {.begin = now};
}

void Delay::measure_shares() {
  const uint64_t sent = round_.acked + round_.lost;
  if (sent == 0) return;
  const uint64_t most = competes() ? kMostCounted : UINT64_MAX;
  const auto lost = static_cast<uint32_t>(std::min(round_.lost, most) * 65536 / sent);
  lost_share_ = lost_share_ - lost_share_ / 32 + lost / 32;
  const auto marked = static_cast<uint32_t>(round_.marked * 1024 / sent);
  marked_share_ = marked_share_ - marked_share_ / 16 + marked / 16;
}

bool Delay::is_recent(const std::optional<Instant>& at, Instant now) {
  return at && now - *at <= kAfterQueue;
}

bool Delay::loses_much() const {
  if (smoothed_ < kLeastQueued) return false;
  return lost_share_ > (smoothed_ < kLongPath ? kMuchLost : kMuchLostOnLongPath);
}

// What the round trip of a long path varies by, without a queue.
Duration Delay::jitter() const { return base_ == kUnknown ? Duration{} : base_ / 8; }

Duration Delay::target() const {
  const auto slow = static_cast<int64_t>(kSlowFlowBytes) * smoothed_.ns / window_;
  return std::min(kTarget + nanoseconds(slow), max_target_) + jitter();
}

void Delay::on_queueing(Duration queueing, Instant now) {
  max_target_ = std::min(max_target_ + max_target_ / 64, kMaxTarget);
  const Duration target = this->target();
  if (queueing > target / 2) queued_at_ = now;
  if (ignores_delay_) {
    const bool is_unused = is_empty(now) && empty_rounds_ >= kEmptyRounds;
    ignores_delay_ = !is_unused && (competes() || now < ignores_until_);
  } else if (is_recent(overflowed_at_, now) && loses_much() && others_fill_queue_.value_or(true)) {
    before_delay_ = 0;
    ignores_delay_ = true;
    ignores_until_ = *overflowed_at_ + kAfterQueue;
  } else if (queueing > target) {
    follow_queue(queueing, target, now);
  } else if (window_ >= before_delay_) {
    before_delay_ = 0;
  }
}

void Delay::follow_queue(Duration queueing, Duration target, Instant now) {
  if (before_delay_ == 0) {
    before_delay_ = window_;
    cubic_before_delay_ = cubic_;
  }
  const auto excess = static_cast<uint64_t>((queueing - target).ns / 1000);
  const auto whole = static_cast<uint64_t>((base_ + queueing).ns / 1000);
  shrink_to(window_ - uint64_t{window_} * excess * 4 / (5 * whole), now);
  if (window_ <= before_delay_ / 4) pause(now);  // it shows whose queue it is
}

void Delay::pause_if_due(Instant now) {
  if (base_ == kUnknown || smoothed_ < kLeastQueued) return;
  // Beside TCP only a loss ends slow start, and there may be none if TCP stops.
  if (!round_.limited || (window_ < slow_start_to_ && !competes())) return;
  if (!is_pausing() && now - confirmed_at_ >= pause_interval()) pause(now);
}

void Delay::pause(Instant now) {
  const Duration pause = std::max(kPause, smoothed_ * 2);
  after_pause_ = window_;
  window_ = std::min(window_, static_cast<uint32_t>(kPacketBytes * smoothed_.ns / (pause / 2).ns));
  pause_end_ = now + pause;
  changed_at_ = now;
  smallest_in_pause_ = kUnknown;
  round_trip_before_pause_ = smoothed_;
  base_before_pause_ = base_;
  update_rate(now);
}

void Delay::end_pause(Instant now) {
  window_ = std::exchange(after_pause_, 0);
  confirmed_at_ = changed_at_ = now;
  if (smallest_in_pause_ == kUnknown) return;
  const bool competed = competes();
  others_fill_queue_ = !has_emptied_queue() && !is_recent(marked_at_, now);
  ignores_delay_ = competes();
  if (competes() && before_delay_ > window_) {  // delay has shrunk it in vain
    window_ = before_delay_;
    cubic_ = cubic_before_delay_;
  }
  before_delay_ = 0;
  if (competes() && !competed) lost_share_ = 0;  // losses count less from now on
  if (competes() && !overflowed_at_) slow_start_to_ = UINT32_MAX;
}

// All Verbenas that share a queue pause together, so a queue that stays is that of others. Such a
// queue may have been there since the flow began, and base_ that of a queue: the round trip must
// halve. On a long path it cannot. There the pause must confirm base_: if it finds a shorter round
// trip, the flow itself was only a part of the queue.
bool Delay::has_emptied_queue() const {
  const Duration smallest = smallest_in_pause_;
  const Duration before = round_trip_before_pause_;
  const Duration base = base_before_pause_;
  if (base >= kLongPath && smallest >= base - base / 16) {
    if ((smallest - base) * 4 <= before - base) return true;
  }
  return smallest * 2 <= before && (smallest - base_) * 4 <= before - base_;
}

Duration Delay::pause_interval() const {
  if (!others_fill_queue_ && base_ >= kLongPath) return base_ * kRoundTripsToFirstPause;
  if (loses_much()) return std::max(kPauseAfterLosses, base_ * kRoundTripsBetweenPauses / 4);
  return std::max(kPauseAfter, base_ * kRoundTripsBetweenPauses);
}

// --- growth --------------------------------------------------------------------------------------

// The receive buffer must hold what the path does not. In slow start the rate is still growing, so
// twice what it delivered is allowed.
uint64_t Delay::limit() const {
  if (base_ == kUnknown) return kReceiveBufferBytes;
  const bool is_slow_start = window_ < slow_start_to_;
  const Duration round_trip = competes() || (ignores_delay_ && !is_slow_start) ? smoothed_ : base_;
  const uint64_t path = delivery_rate_ / 1000 * static_cast<uint64_t>(round_trip.ns) / 1'000'000;
  return std::clamp<uint64_t>(2 * path, kReceiveBufferBytes, kMaxWindow);
}

void Delay::grow(const AckEvent& event) {
  if (event.in_flight < window_ / 2) return;  // the sender needs no larger window
  round_.limited = true;
  if (window_ < slow_start_to_) {
    const uint64_t larger = uint64_t{window_} + event.bytes;
    const uint64_t limit = this->limit();
    window_ = static_cast<uint32_t>(std::min(larger, limit));
    // Between busy hosts nothing else would end it.
    if (larger > limit && ignores_delay_ && !competes()) slow_start_to_ = window_;
    return;
  }
  acked_ += event.bytes;
  if (acked_ < window_) return;
  acked_ = 0;
  const uint64_t additive = uint64_t{window_} + growth(event.now);
  const uint64_t cubic = std::min(cubic_window(event.now), uint64_t{window_} * 3 / 2);
  window_ = static_cast<uint32_t>(std::min(std::max(additive, cubic), limit()));
}

uint32_t Delay::growth(Instant now) const {
  uint32_t step = ignores_delay_ ? kFairGrowth : kGrowthWithQueue;
  if (loses_much()) step = kGrowthWithLosses / window_;
  // Without a queue a window far below a packet grows by a packet, too. Otherwise a flow at the
  // minimum would stay there for many round trips.
  const bool is_small = window_ < kPacketBytes / 4 && empty_rounds_ > 0 && !loses_much();
  step = is_small ? kPacketBytes : std::clamp(window_ / 4, 16u, std::max(step, 16u));
  if (!is_empty(now)) return step;
  return std::max({step, kPacketBytes, empty_rounds_ >= kEmptyRounds ? window_ / 16 : 0});
}

// The queue is empty, and not only because others pause.
bool Delay::is_empty(Instant now) const {
  const bool others_may_pause = is_recent(queued_at_, now) && now - empty_since_ <= kPause * 2;
  return empty_rounds_ > 0 && !others_may_pause;
}

uint64_t Delay::cubic_window(Instant now) const {
  if (cubic_.plateau == 0) return 0;
  const int64_t ms = (now - cubic_.begin - cubic_.to_plateau + smoothed_).ns / 1'000'000;
  const int64_t t = std::clamp(ms, -kMaxCubicMs, kMaxCubicMs);
  const int64_t bytes = cubic_.plateau + t * t * t / kCubicDenominator * kCubicNumerator;
  return static_cast<uint64_t>(std::max<int64_t>(bytes, 0));
}

void Delay::shrink_to(uint64_t window, Instant now) {
  if (is_pausing()) return;
  const uint32_t before = window_;
  window_ = static_cast<uint32_t>(std::clamp<uint64_t>(window, kMinWindow, kMaxWindow));
  slow_start_to_ = std::min(slow_start_to_, window_);
  acked_ = 0;
  changed_at_ = now;
  const int64_t lost = std::max<int64_t>(int64_t{before} - window_, 0);
  cubic_ = {.plateau = before,
            .begin = now,
            .to_plateau = milliseconds(cube_root(lost * kCubicDenominator / kCubicNumerator))};
  update_rate(now);
}

// --- pacing --------------------------------------------------------------------------------------

void Delay::update_rate(Instant now) {
  const uint64_t unlimited = rate_of_window(window_, smoothed_);
  cnp_rate_.advance(unlimited, now);
  pacing_rate_ = cnp_rate_.rate();
  if (window_ < 2 * kPacketBytes) {
    pacing_rate_ = std::min(pacing_rate_, std::max<uint64_t>(unlimited, 1));
  }
}

}  // namespace verbena::core
