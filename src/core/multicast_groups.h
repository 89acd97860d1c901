// MulticastGroups: which queue pairs are attached to which multicast group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/result.h"
#include "wire/identifiers.h"

namespace verbena::core {

class QueuePair;

inline constexpr uint32_t kMaxGroups = 256;
inline constexpr uint32_t kMaxQpsPerGroup = 1024;

class MulticastGroups {
 public:
  // Attaching twice has no further effect. ENOMEM beyond the limits above.
  Status attach(QueuePair& qp, const wire::Gid& group);
  // False: it was not attached.
  bool detach(const QueuePair& qp, const wire::Gid& group);
  void detach_from_all(const QueuePair& qp);

  bool has_members(const wire::Gid& group) const { return groups_.contains(group); }
  std::span<QueuePair* const> members(const wire::Gid& group) const;
  // Groups that `qp` is attached to.
  std::vector<wire::Gid> groups_of(const QueuePair& qp) const;

 private:
  std::map<wire::Gid, std::vector<QueuePair*>> groups_;  // none is empty
};

}  // namespace verbena::core
