// The receiver's completion queue and its three ways to wait for completions.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <span>

#include "base/time.h"
#include "tools/daq/recv.h"
#include "tools/daq/verbs_device.h"

namespace verbena::daqtool {

class Completions {
 public:
  Completions(const VerbsDevice& device, uint32_t entries, Poll mode, Duration spin);

  ibv_cq* queue() const { return cq_.get(); }
  uint32_t entries() const { return static_cast<uint32_t>(cq_->cqe); }

  // The next batch of completions; valid until the next call.
  std::span<const ibv_wc> poll(Instant at);
  // Call after an empty poll at `at`. Waits as the mode demands, at most until `until` or until
  // `descriptor` is readable. The caller then polls again.
  void wait(Instant at, Instant until, int descriptor);

  uint64_t sleeps() const { return sleeps_; }
  // The largest number of completions found waiting since the last call.
  uint32_t reset_max_depth();

 private:
  void sleep_for_event(Instant until, int descriptor);

  const VerbsDevice& device_;
  Owned<ibv_cq, ibv_destroy_cq> cq_;
  const Poll mode_;
  const Duration spin_;
  std::array<ibv_wc, 64> batch_{};
  Instant found_at_{0};
  bool armed_ = false;
  uint64_t sleeps_ = 0;
  uint32_t depth_ = 0;  // completions polled without an empty poll
  uint32_t max_depth_ = 0;
};

}  // namespace verbena::daqtool
