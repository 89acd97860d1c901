// Busy-polling before sleeping, and SpinBudget, which limits it. Busy-polling is cheaper than
// sleeping if the reply is received soon, and wasteful otherwise, so each thread records how often
// it succeeded.
#pragma once

#include <sched.h>

#include <algorithm>

#include "base/pause.h"
#include "base/time.h"
#include "rsocket/clock.h"
#include "rsocket/settings.h"

namespace verbena::rsocket {

// Pauses between two checks, for a thread that has polled for `waited`. After a short time it
// yields the core: the thread that will reply may need it.
inline void pause_between_checks(Duration waited) {
  constexpr Duration kOurs = microseconds(5);
  if (waited < kOurs) {
    pause_cpu();
  } else {
    sched_yield();
  }
}

class SpinBudget {
 public:
  static SpinBudget& of_this_thread() {
    thread_local SpinBudget budget(Settings::get().spin);
    return budget;
  }
  explicit SpinBudget(Duration max) : max_(max) {}

  Duration allowance() {
    if (failures_ < kMaxFailures) return max_;
    return ++skipped_ % kRetryEvery == 0 ? max_ : Duration{0};
  }
  void succeeded() { failures_ = 0; }
  void failed() { ++failures_; }

 private:
  static constexpr uint32_t kMaxFailures = 8;  // consecutive failures before busy-polling stops
  static constexpr uint32_t kRetryEvery = 16;  // after that, every 16th call tries it
  Duration max_;
  uint32_t failures_ = 0;
  uint32_t skipped_ = 0;
};

// Calls check(waited), which pauses and checks, until it returns true. Returns false if the budget
// is spent or the deadline has passed.
template <typename Check, typename Clock = Instant (*)()>
bool spin(SpinBudget& budget, Instant deadline, Check check, Clock clock = now) {
  const Duration allowance = budget.allowance();
  if (allowance.ns == 0) return false;
  const Instant begin = clock();
  const Duration limit = std::min(allowance, deadline - begin);
  Duration waited{0};
  do {
    if (check(waited)) {
      budget.succeeded();
      return true;
    }
    waited = clock() - begin;
  } while (waited < limit);
  // A busy poll that the deadline ended early is no failure.
  if (limit == allowance) budget.failed();
  return false;
}

}  // namespace verbena::rsocket
