// The event loop.
#include "sim/world.h"

#include <algorithm>

namespace verbena::sim {

Host& World::add_host(bool extensions) {
  const auto id = static_cast<HostId>(hosts_.size());
  const uint64_t secret = prng_.next();
  processes_.push_back(std::make_unique<Process>(*this, id, secret));
  hosts_.push_back(std::make_unique<Host>(*this, id, *processes_.back(), secret, extensions));
  return *hosts_.back();
}

Host& World::add_lane(Host& first, bool extensions) {
  const auto id = static_cast<HostId>(hosts_.size());
  hosts_.push_back(
      std::make_unique<Host>(*this, id, first.process(), lane_prng_.next(), extensions));
  return *hosts_.back();
}

void World::at(Instant when, std::function<void()> action) {
  events_.push_back({std::max(when, now_), next_order_++, std::move(action)});
  std::push_heap(events_.begin(), events_.end(), later);
}

void World::send(HostId from, wire::PathId path, Bytes packet) {
  const auto number = static_cast<uint32_t>(path);
  if (number < kFirstGroupPath) {
    return send_to(from, number, hosts_[number]->gid(), std::move(packet));
  }
  const wire::Gid group = Network::gid_of_group(number - kFirstGroupPath);
  for (HostId to = 0; to < hosts_.size(); ++to) {
    if (hosts_[to]->engine().has_members(group)) send_to(from, to, group, packet);
  }
}

void World::send_to(HostId from, HostId to, const wire::Gid& destination, Bytes packet) {
  for (Network::Delivery& d : network_.send(from, to, std::move(packet), now_)) {
    at(d.at,
       [this, from, to, destination, bytes = std::move(d.bytes), marked = d.marked]() mutable {
         hosts_[to]->deliver(std::move(bytes), from, destination, marked);
       });
  }
}

bool World::step() {
  if (events_.empty()) return false;
  std::pop_heap(events_.begin(), events_.end(), later);
  Event event = std::move(events_.back());
  events_.pop_back();
  now_ = event.at;
  ++events_done_;
  trace_.add(static_cast<uint64_t>(now_.ns));
  event.action();
  return true;
}

void World::run_until(Instant end) {
  while (!events_.empty() && events_.front().at <= end) step();
  now_ = std::max(now_, end);
}

bool World::run_until_quiet(Duration limit) {
  const Instant end = now_ + limit;
  while (!events_.empty() && events_.front().at <= end) step();
  return events_.empty();
}

std::vector<std::string> World::process_problems() const {
  std::vector<std::string> all;
  for (const auto& p : processes_) {
    all.insert(all.end(), p->problems().begin(), p->problems().end());
  }
  return all;
}

}  // namespace verbena::sim
