// Withdrawals, and the barrier that checks them.
#include "sim/process.h"

#include <algorithm>
#include <utility>

#include "sim/world.h"

namespace verbena::sim {

Process::Process(World& world, HostId address, uint64_t secret)
    : world_(world), address_(address), memory_(secret, this) {}

bool Process::finds(const KeyUse& use) const {
  constexpr uint32_t kPd = 1;
  return std::ranges::any_of(lanes_, [&](Host* lane) {
    const core::MemoryView& view = lane->engine().state().memory;
    return view.grants(use.key, kPd, use.qpn, use.address, 1, 0) ||
           view.resolve_local(use.key, kPd, use.address, 1, 0).at != nullptr;
  });
}

Status Process::withdraw(const KeyUse& use, const std::function<Status()>& call, bool is_back) {
  waiting_.push_back({use});
  Status status = call();
  const Waiting waited = waiting_.back();
  waiting_.pop_back();
  if (status.ok() && !waited.has_waited) {
    problems_.push_back("a key was withdrawn without waiting for lookups");
  }
  if (status.ok() && !is_back && finds(use)) problems_.push_back("a withdrawn key is still found");
  return status;
}

Status Process::remove_region(uint32_t key) {
  const auto region = memory_.region_of(key);
  return withdraw({.key = key, .address = region ? region->iova : 0},
                  [&] { return memory_.remove_region(key); });
}

void Process::rebind_completed(const KeyUse& use, bool executed) {
  const auto found = std::ranges::find(rebinds_, use, &Waiting::use);
  if (executed && !found->has_waited) {
    problems_.push_back("a window was bound again without waiting for lookups");
  }
  rebinds_.erase(found);
}

// The engine does not say which window it has bound: one of the posted ones.
void Process::check_rebind() {
  const auto done = std::ranges::find_if(
      rebinds_, [&](const Waiting& w) { return !w.has_waited && !finds(w.use); });
  if (done != rebinds_.end()) {
    done->has_waited = true;
  } else if (!rebinds_.empty()) {
    problems_.push_back("an engine waits for lookups of a window that is still found");
  }
}

void Process::await_lookups(const core::MemoryView* caller) {
  if (caller != nullptr) {
    check_rebind();
  } else if (!waiting_.empty()) {
    waiting_.back().has_waited = true;
    if (finds(waiting_.back().use)) {
      problems_.push_back("a call waits for lookups of a key that is still found");
    }
  }
  if (lanes_.size() == 1) return;
  const size_t first = world_.lane_prng().below(lanes_.size());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Host& lane = *lanes_[(first + i) % lanes_.size()];
    if (is_in_call(lane) || world_.lane_prng().below(2) == 0) continue;
    ++turns_in_waits_;
    lane.turn();
  }
}

void Process::after_lookups(std::function<void()> action) {
  if (calls_.empty()) return action();
  put_off_.push_back(std::move(action));
}

bool Process::is_in_call(const Host& lane) const {
  return std::ranges::find(calls_, &lane, &Active::lane) != calls_.end();
}

Process::Call::Call(Process& process, const Host& lane) : process_(process) {
  process.calls_.push_back({&lane, process.next_moment()});
}

Process::Call::~Call() {
  process_.calls_.pop_back();
  if (!process_.calls_.empty()) return;
  for (const auto& action : std::exchange(process_.put_off_, {})) action();
}

}  // namespace verbena::sim
