// Finds the listener of a request.
#include "cm/listeners.h"

#include <algorithm>
#include <cerrno>

#include "base/exhaustion.h"

namespace verbena::cm {
namespace {

bool covers(Family family, const wire::Gid& address) {
  return family == Family::Both || (family == Family::Ipv4) == address.is_ipv4();
}

// As with sockets, a listener on one address conflicts with one on every address.
bool collide(const ListenParameters& a, const ListenParameters& b) {
  if (a.address && b.address) return *a.address == *b.address;
  if (a.address) return covers(b.family, *a.address);
  if (b.address) return covers(a.family, *b.address);
  return a.family == b.family || a.family == Family::Both || b.family == Family::Both;
}

}  // namespace

Result<uint32_t> Listeners::add(const ListenParameters& parameters) {
  std::vector<Listener>& there = by_service_[parameters.service_id];
  for (const Listener& other : there) {
    if (collide(parameters, other.parameters)) {
      return Error{EADDRINUSE, "another listener has this port and address"};
    }
  }
  while (next_id_ == 0 || service_of_.contains(next_id_)) ++next_id_;
  const uint32_t id = next_id_++;
  service_of_.emplace(id, parameters.service_id);
  if (!try_allocating([&] { there.push_back({id, parameters, 0}); })) {
    service_of_.erase(id);
    return Error{ENOMEM, "out of memory"};
  }
  return id;
}

bool Listeners::remove(uint32_t id) {
  const auto service = service_of_.find(id);
  if (service == service_of_.end()) return false;
  const auto there = by_service_.find(service->second);
  std::erase_if(there->second, [id](const Listener& l) { return l.id == id; });
  if (there->second.empty()) by_service_.erase(there);
  service_of_.erase(service);
  return true;
}

Listener* Listeners::find(uint32_t id) {
  const auto service = service_of_.find(id);
  if (service == service_of_.end()) return nullptr;
  for (Listener& l : by_service_[service->second]) {
    if (l.id == id) return &l;
  }
  return nullptr;
}

Listener* Listeners::match(uint64_t service_id, const wire::Gid& address) {
  const auto there = by_service_.find(service_id);
  if (there == by_service_.end()) return nullptr;
  Listener* any = nullptr;
  for (Listener& l : there->second) {
    if (l.parameters.address && *l.parameters.address == address) return &l;
    if (!l.parameters.address && covers(l.parameters.family, address)) any = &l;
  }
  return any;
}

size_t Listeners::size() const { return service_of_.size(); }

}  // namespace verbena::cm
