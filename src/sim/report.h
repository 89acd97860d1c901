// The errors that the checkers found.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"

namespace verbena::sim {

class Report {
 public:
  void problem(Instant at, const std::string& what) {
    if (problems_.size() < 20) {
      char when[40];
      std::snprintf(when, sizeof when, "[%.3f us] ", static_cast<double>(at.ns) / 1000);
      problems_.push_back(when + what);
    }
  }
  bool ok() const { return problems_.empty(); }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

}  // namespace verbena::sim
