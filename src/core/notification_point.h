// NotificationPoint: when a queue pair sends a congestion notification packet (CNP), which tells a
// RoCE peer that its packets arrive with ECN marks. The name is DCQCN's.
#pragma once

#include "base/time.h"

namespace verbena::core {

class NotificationPoint {
 public:
  // At most one CNP leaves in this time: a sender that follows DCQCN reacts no more often.
  static constexpr Duration kInterval = microseconds(50);

  // A packet arrived with an ECN mark.
  void on_marked(Instant now) { is_due_ |= now >= next_at_; }
  bool is_due() const { return is_due_; }
  void on_sent(Instant now) {
    is_due_ = false;
    next_at_ = now + kInterval;
  }

 private:
  bool is_due_ = false;
  Instant next_at_{};
};

}  // namespace verbena::core
