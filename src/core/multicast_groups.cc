// Membership of multicast groups and its limits.
#include "core/multicast_groups.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace verbena::core {

Status MulticastGroups::attach(QueuePair& qp, const wire::Gid& group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) {
    if (groups_.size() >= kMaxGroups) {
      return Error{ENOMEM, "too many multicast groups (see max_mcast_grp)"};
    }
    std::vector<QueuePair*> members{&qp};
    groups_.emplace(group, std::move(members));
    return {};
  }
  std::vector<QueuePair*>& members = found->second;
  if (std::ranges::find(members, &qp) != members.end()) return {};
  if (members.size() >= kMaxQpsPerGroup) {
    return Error{ENOMEM, "too many queue pairs in the group (see max_mcast_qp_attach)"};
  }
  members.push_back(&qp);
  return {};
}

bool MulticastGroups::detach(const QueuePair& qp, const wire::Gid& group) {
  const auto found = groups_.find(group);
  if (found == groups_.end() || std::erase(found->second, &qp) == 0) return false;
  if (found->second.empty()) groups_.erase(found);
  return true;
}

void MulticastGroups::detach_from_all(const QueuePair& qp) {
  for (auto group = groups_.begin(); group != groups_.end();) {
    std::erase(group->second, &qp);
    group = group->second.empty() ? groups_.erase(group) : std::next(group);
  }
}

std::span<QueuePair* const> MulticastGroups::members(const wire::Gid& group) const {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return {};
  return found->second;
}

std::vector<wire::Gid> MulticastGroups::groups_of(const QueuePair& qp) const {
  std::vector<wire::Gid> found;
  for (const auto& [group, members] : groups_) {
    if (std::ranges::find(members, &qp) != members.end()) found.push_back(group);
  }
  return found;
}

}  // namespace verbena::core
