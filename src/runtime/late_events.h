// LateEvents: completion queues that were armed while a completion waited in them unpolled. A
// program should poll after arming, and most do so within microseconds. For a program that sleeps
// at once, as UCX does when UD endpoints connect, hardware raises an event. Verbena raises it after
// a grace period: an immediate event would be spurious for the programs that do poll.
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
  using Unpolled = core::CompletionQueue::Unpolled;

  static constexpr Duration kGracePeriod = milliseconds(1);
  // For completions that an event announced: most applications arm before they poll.
  static constexpr Duration kAnnouncedGracePeriod = milliseconds(60);

  // False: out of memory.
  bool note(core::CompletionQueue* cq, Unpolled unpolled, Instant at) {
    const Duration grace = unpolled == Unpolled::Announced ? kAnnouncedGracePeriod : kGracePeriod;
    const Entry entry{.cq = cq, .polled = cq->taken(), .due = at + grace};
    const auto known = std::ranges::find(entries_, cq, &Entry::cq);
    if (known == entries_.end()) {
      if (!try_append(entries_, entry)) return false;
    } else if (known->polled != entry.polled) {
      *known = entry;
    } else {  // arming again does not postpone the event
      known->due = std::min(known->due, entry.due);
    }
    deadline_ = std::min(deadline_, entry.due);
    return true;
  }
  void forget(core::CompletionQueue* cq) {
    std::erase_if(entries_, [cq](const Entry& e) { return e.cq == cq; });
    find_deadline();
  }
  Instant deadline() const { return deadline_; }

  // Calls raise(cq) for each queue whose completions are still unpolled when they are due. If
  // raise() returns false, for lack of memory, the queue stays noted.
  template <typename Raise>
  void raise_due(Instant at, Raise raise) {
    size_t kept = 0;
    for (Entry& e : entries_) {
      if (e.due <= at) {
        const core::CompletionQueue::Producing producing(*e.cq);
        if (!e.cq->take_late_event() || raise(e.cq)) continue;
        e.due = at + kGracePeriod;
      }
      entries_[kept++] = e;
    }
    entries_.resize(kept);
    find_deadline();
  }

 private:
  struct Entry {
    core::CompletionQueue* cq;
    uint64_t polled;  // completions polled in total when the queue was noted
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
