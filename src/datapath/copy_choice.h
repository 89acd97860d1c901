// CopyChoice: how a stream of large copies is done whose bytes another processor reads next. With
// separate caches, stores past the caches are several times as fast; with a shared cache, or on
// another kind of processor, ordinary copies are. So the writer tries both ways now and then, while
// the stream runs, and keeps the one that moved more bytes per second.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace verbena::datapath {

class CopyChoice {
 public:
  using Clock = Instant (*)();

  explicit CopyChoice(Clock clock = system_clock) : clock_(clock) {}

  bool is_past_caches() const { return past_caches_; }
  // So many bytes were copied in that way.
  void add(size_t bytes) {
    left_ -= static_cast<int64_t>(bytes);
    if (left_ <= 0) [[unlikely]]
      next_phase();
  }
  // A copy in the chosen way. Later stores become visible after it.
  void copy(std::byte* to, const std::byte* from, size_t bytes);

  // A trial measures each way twice, in turn, over kMeasured bytes. Bytes of the other way may
  // still be on their way to the reader before that.
  static constexpr int64_t kUnmeasured = int64_t{2} << 20;
  static constexpr int64_t kMeasured = int64_t{6} << 20;
  // Between two trials. It doubles each time that a trial changes nothing.
  static constexpr int64_t kShortestStay = int64_t{2} << 30;
  static constexpr int64_t kLongestStay = int64_t{32} << 30;

 private:
  static constexpr size_t kSeries = 4;
  static constexpr size_t kPhases = 2 * kSeries;  // of a trial: unmeasured, measured, ...

  static Instant system_clock();
  void next_phase();
  void decide();

  Clock clock_;
  bool past_caches_ = true;
  bool before_trial_ = true;  // the choice that holds unless the trial contradicts it
  size_t phase_ = 0;          // kPhases: no trial is under way
  int64_t left_ = kUnmeasured;
  int64_t stay_ = kShortestStay;
  Instant since_;
  std::array<Duration, kSeries> taken_{};
};

}  // namespace verbena::datapath
