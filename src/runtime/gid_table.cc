// An address keeps its index, because programs store the index in their address vectors.
#include <algorithm>

#include "runtime/devices.h"

namespace verbena::runtime {

bool GidTable::update(const std::vector<wire::Gid>& addresses) {
  bool changed = false;
  for (wire::Gid& entry : entries_) {
    if (!entry.is_zero() && std::ranges::find(addresses, entry) == addresses.end()) {
      entry = {};
      changed = true;
    }
  }
  for (const wire::Gid& address : addresses) {
    if (address.is_zero() || std::ranges::find(entries_, address) != entries_.end()) continue;
    const auto hole = std::ranges::find(entries_, wire::Gid{});
    if (hole != entries_.end()) {
      *hole = address;
    } else if (entries_.size() < kSize) {
      entries_.push_back(address);
    } else {
      break;
    }
    changed = true;
  }
  return changed;
}

}  // namespace verbena::runtime
