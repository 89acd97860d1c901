// The receiver's completion queue, and how it waits while there is nothing in it.
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

  // A batch of what is there; good until the next call.
  std::span<const ibv_wc> take(Instant at);
  // Nothing was there at `at`: waits in the mode's way, at most until `until`, or until
  // `descriptor` has something to read. Then it is time to look again.
  void rest(Instant at, Instant until, int descriptor);

  uint64_t sleeps() const { return sleeps_; }
  // The most completions that were waiting at once since the last call.
  uint32_t take_deepest();

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
  uint32_t depth_ = 0;  // taken in a row without an end
  uint32_t deepest_ = 0;
};

}  // namespace verbena::daqtool
