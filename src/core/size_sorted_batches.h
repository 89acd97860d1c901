// The order of new packets. To a peer that accepts any order, packets of several messages leave
// sorted by size (core/ext). In a build without core/ext they always leave in PSN order.
#pragma once

#if __has_include("core/ext/size_sorted_batches.h") && !defined(VERBENA_PLAIN_ROCE)
#include "core/ext/size_sorted_batches.h"  // IWYU pragma: export
#else

#include <cstdint>

#include "core/qp_common.h"
#include "core/scoreboard.h"
#include "core/send_cursor.h"

namespace verbena::core {

class SizeSortedBatches {
 public:
  SizeSortedBatches(QpCommon&, SendCursor&) {}
  static constexpr uint32_t plan(uint32_t) { return 0; }
  static constexpr uint32_t packets_before_next_plan() { return UINT32_MAX; }
  template <typename Visit>
  void send(uint32_t, Visit) {}
  void restore_order(Scoreboard&) const {}
  void on_acked() {}
  void on_timed_out() {}
  void clear() {}
  void reset() {}
};

}  // namespace verbena::core

#endif
