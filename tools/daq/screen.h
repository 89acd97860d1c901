// The live screen of verbena recv: drawn over itself, on a terminal.
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
  Instant start;  // the first message
  double cpu_seconds = 0;
  uint32_t deepest = 0;      // completions waiting at once since the last time
  uint32_t completions = 0;  // that the queue has room for
  uint64_t sleeps = 0;
  std::optional<NicCounters> nic;
};

class Screen {
 public:
  void draw(const Scene& scene);
  // Something else is to be printed where it stands; it is drawn again below.
  void make_way();

 private:
  struct Before {
    std::vector<uint64_t> bytes;  // by stream
    Instant at{0};
    double cpu_seconds = 0;
    uint64_t sleeps = 0;
  };
  std::vector<std::string> table_of(const Scene& scene, size_t most_rows) const;
  std::string footer_of(const Scene& scene) const;

  Before before_;
  size_t lines_ = 0;
};

}  // namespace verbena::daqtool
