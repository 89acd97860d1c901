// The live screen of verbena recv: drawn over itself, on a terminal.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.h"
#include "tools/daq/recv.h"

namespace verbena::daqtool {

struct ScreenRow {
  StreamSummary so_far;
  uint32_t receives_posted;
};

class Screen {
 public:
  // `deepest`: the most completions found at once since the last time.
  void draw(const std::vector<ScreenRow>& rows, Instant at, Instant start, double cpu_seconds,
            int deepest);
  // Something else was printed: it starts again below.
  void leave_room() { lines_ = 0; }

 private:
  struct Before {
    uint64_t messages = 0;
    uint64_t bytes = 0;
  };
  std::vector<Before> before_;
  Instant before_at_{0};
  double before_cpu_ = 0;
  size_t lines_ = 0;
};

}  // namespace verbena::daqtool
