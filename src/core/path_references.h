// PathReferences: reference counts of the paths of address handles. A handle may be destroyed while
// requests that were posted with it are queued, and their path must stay open until then.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "wire/packet_io.h"

namespace verbena::core {

class PathReferences {
 public:
  // The first reference belongs to the caller.
  void open(wire::PathId path) {
    const size_t id = index(path);
    references_.resize(std::max(references_.size(), id + 1));
    idle_.reserve(references_.capacity());  // release() does not allocate
    VERBENA_CHECK(references_[id] == 0);
    references_[id] = 1;  // last: if an allocation fails, there is no reference
  }
  // Paths that were not opened here are not counted and stay open.
  void add(wire::PathId path) {
    if (counts(path)) ++references_[index(path)];
  }
  void release(wire::PathId path) {
    if (counts(path) && --references_[index(path)] == 0) idle_.push_back(path);
  }
  // Paths without references. The engine's owner closes them and clears the list.
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
