// The live screen of verbena recv: a table on the terminal that is redrawn in place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "tools/daq/connections.h"
#include "tools/daq/nic_counters.h"

namespace verbena::daqtool {

struct Scene {
  std::vector<Connections::View> streams;
  Instant at;
  Instant start;  // time of the first message
  double cpu_seconds = 0;
  uint32_t max_depth = 0;    // completions found waiting at once since the last drawing
  uint32_t completions = 0;  // capacity of the completion queue
  uint64_t sleeps = 0;
  std::optional<NicCounters> nic;
};

class Screen {
 public:
  void draw(const Scene& scene);
  // Removes the table so that a log line can be printed; the next draw() starts below it.
  void clear();

 private:
  struct Previous {
    std::vector<uint64_t> bytes;  // by stream
    Instant at{0};
    double cpu_seconds = 0;
    uint64_t sleeps = 0;
  };
  std::vector<std::string> table_of(const Scene& scene, size_t max_rows) const;
  std::string footer_of(const Scene& scene) const;

  Previous previous_;
  size_t lines_ = 0;
};

}  // namespace verbena::daqtool
