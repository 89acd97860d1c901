// Who still needs the paths of address handles: a handle may go while requests that were posted
// with it wait for their turn, and their path must not become somebody else's meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "wire/packet_io.h"

namespace verbena::core {

class PathHolds {
 public:
  // The first hold is the opener's.
  void open(wire::PathId path) {
    const size_t id = index(path);
    holds_.resize(std::max(holds_.size(), id + 1));
    idle_.reserve(holds_.capacity());  // release() does not allocate
    VERBENA_CHECK(holds_[id] == 0);
    holds_[id] = 1;  // last: without memory, nothing is held
  }
  // A path that was not opened here stays for ever, and nobody counts.
  void hold(wire::PathId path) {
    if (counts(path)) ++holds_[index(path)];
  }
  void release(wire::PathId path) {
    if (counts(path) && --holds_[index(path)] == 0) idle_.push_back(path);
  }
  // Paths to be closed, by the engine's owner, who clears the list.
  std::vector<wire::PathId>& idle() { return idle_; }
  const std::vector<wire::PathId>& idle() const { return idle_; }

 private:
  static size_t index(wire::PathId path) { return static_cast<uint32_t>(path); }
  bool counts(wire::PathId path) const {
    return index(path) < holds_.size() && holds_[index(path)] != 0;
  }

  std::vector<uint32_t> holds_;  // by PathId
  std::vector<wire::PathId> idle_;
};

}  // namespace verbena::core
