// Looking for completions before going to sleep, and SpinBudget: for how long. Looking is cheaper
// than sleeping when the answer is near and a waste otherwise, so each thread remembers what it
// was good for.
#pragma once

#include <sched.h>

#include <algorithm>

#include "base/pause.h"
#include "base/time.h"
#include "rsocket/clock.h"
#include "rsocket/settings.h"

namespace verbena::rsocket {

// Between two looks, for one who has looked for `waited`. An answer that is not there at once may
// be a matter of this core: whoever has to give it gets it.
inline void pause_between_looks(Duration waited) {
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
  explicit SpinBudget(Duration most) : most_(most) {}

  Duration allowance() {
    if (in_vain_ < kPatience) return most_;
    return ++skipped_ % kRetryEvery == 0 ? most_ : Duration{0};
  }
  void paid_off() { in_vain_ = 0; }
  void was_in_vain() { ++in_vain_; }

 private:
  static constexpr uint32_t kPatience = 8;     // so often in a row before it is given up
  static constexpr uint32_t kRetryEvery = 16;  // then it is tried this rarely
  Duration most_;
  uint32_t in_vain_ = 0;
  uint32_t skipped_ = 0;
};

// look(waited) pauses and looks, until it is content: true. False: the budget is spent, or the
// deadline has come.
template <typename Look, typename Clock = Instant (*)()>
bool spin(SpinBudget& budget, Instant deadline, Look look, Clock clock = now) {
  const Duration allowance = budget.allowance();
  if (allowance.ns == 0) return false;
  const Instant begin = clock();
  const Duration most = std::min(allowance, deadline - begin);
  Duration waited{0};
  do {
    if (look(waited)) {
      budget.paid_off();
      return true;
    }
    waited = clock() - begin;
  } while (waited < most);
  // One that had to end early might have paid off.
  if (most == allowance) budget.was_in_vain();
  return false;
}

}  // namespace verbena::rsocket
