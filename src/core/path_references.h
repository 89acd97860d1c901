// Who still needs the paths of address handles: a handle may go while requests that were posted
// with it wait for their turn, and their path must not become somebody else's meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "wire/packet_io.h"

namespace verbena::core {

class PathReferences {
 public:
  // The first reference is the opener's.
  void open(wire::PathId path) {
    const size_t id = index(path);
    references_.resize(std::max(references_.size(), id + 1));
    idle_.reserve(references_.capacity());  // release() does not allocate
    VERBENA_CHECK(references_[id] == 0);
    references_[id] = 1;  // last: without memory, nothing is held
  }
  // A path that was not opened here stays for ever, and nobody counts.
  void add(wire::PathId path) {
    if (counts(path)) ++references_[index(path)];
  }
  void release(wire::PathId path) {
    if (counts(path) && --references_[index(path)] == 0) idle_.push_back(path);
  }
  // Paths to be closed, by the engine's owner, who clears the list.
  std::vector<wire::PathId>& idle() { return idle_; }
  const std::vector<wire::PathId>& idle() const { return idle_; }

 private:
  static size_t index(wire::PathId path) { return static_cast<uint32_t>(path); }
  bool counts(wire::PathId path) const {
    return index(path) < references_.size() && references_[index(path)] != 0;
  }

  std::vector<uint32_t> references_;  // by PathId
  std::vector<wire::PathId> idle_;
};

}  // namespace verbena::core
