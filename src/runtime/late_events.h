// LateEvents: completion queues that were armed while a completion waited in them unpolled. A
// program should poll after arming, and most do so within microseconds. For one that sleeps at
// once, as UCX does when UD endpoints connect, hardware raises an event. So does Verbena, after a
// grace period, since an immediate event would find nothing to poll in the programs that do poll.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/exhaustion.h"
#include "base/time.h"
#include "core/completion_queue.h"

namespace verbena::runtime {

class LateEvents {
 public:
  static constexpr Duration kGracePeriod = milliseconds(1);

  // False: there is no memory to note it.
  bool note(core::CompletionQueue* cq, Instant at) {
    const Entry entry{.cq = cq, .polled = cq->taken(), .due = at + kGracePeriod};
    const auto known = std::ranges::find(entries_, cq, &Entry::cq);
    if (known == entries_.end()) {
      if (!try_append(entries_, entry)) return false;
    } else if (known->polled !=
               entry.polled) {  // an application that does not poll waits no longer
      *known = entry;
    }
    deadline_ = std::min(deadline_, entry.due);
    return true;
  }
  void forget(core::CompletionQueue* cq) {
    std::erase_if(entries_, [cq](const Entry& e) { return e.cq == cq; });
    find_deadline();
  }
  Instant deadline() const { return deadline_; }

  // Calls raise(cq) for each queue whose completions are still unpolled when its time has come.
  template <typename Raise>
  void raise_due(Instant at, Raise raise) {
    std::erase_if(entries_, [&](const Entry& e) {
      if (e.due > at) return false;
      if (e.cq->take_late_event()) raise(e.cq);
      return true;
    });
    find_deadline();
  }

 private:
  struct Entry {
    core::CompletionQueue* cq;
    uint64_t polled;  // completions, ever, when it was noted
    Instant due;
  };

  void find_deadline() {
    deadline_ = kNever;
    for (const Entry& e : entries_) deadline_ = std::min(deadline_, e.due);
  }

  std::vector<Entry> entries_;
  Instant deadline_ = kNever;
};

}  // namespace verbena::runtime
