// Adds lanes, and assigns completion queues to them.
#include "runtime/lane_set.h"

#include <algorithm>

#include "base/exhaustion.h"
#include "host/slot_directory.h"
#include "os/processors.h"
#include "runtime/config.h"
#include "runtime/event_channel.h"
#include "runtime/log.h"
#include "runtime/process.h"

namespace verbena::runtime {
namespace {

// Each lane has a slot. Beyond this number, the remaining slots are left to processes.
constexpr size_t kSlotsForLanes = 64;

// Threads confine themselves to processors when they start, so the number may grow.
constexpr Duration kProcessorsValid = milliseconds(100);

size_t most_lanes() {
  const size_t wanted = config().lanes != 0 ? config().lanes : os::usable_processors();
  return std::clamp<size_t>(wanted, 1, LaneSet::kMaxLanes);
}

CqLanes* lanes_of(const core::CompletionQueue* cq) {
  if (cq == nullptr || cq->owner == nullptr) return nullptr;
  return static_cast<const Owner*>(cq->owner)->lanes;
}

}  // namespace

Lane& CqLanes::lock_home() const {
  for (;;) {
    Lane& lane = home();
    lane.lock();
    if (&lane == &home()) return lane;
    lane.unlock();
  }
}

void CqLanes::each_other(const std::function<void(Lane&)>& visit) const {
  home().lanes().each_of(others_, visit);
}

void CqLanes::add(const Lane& other) {
  others_.add(other);
  if (of_channel_ != nullptr) of_channel_->add(other);
}

LaneSet::LaneSet(const DeviceInfo& device, LaneOwner& owner, core::MemoryRegistry& memory)
    : device_(device), owner_(owner), memory_(memory) {
  lanes_[0] = std::make_unique<Lane>(device, owner, *this, memory, 0);
}

Lane& LaneSet::of(wire::Qpn qpn) {
  for (size_t i = 1, n = size(); i < n; ++i) {
    if (lanes_[i]->slot() == qpn.slot()) return *lanes_[i];
  }
  return first();
}

Lane& LaneSet::choose(core::CompletionQueue* send_cq, core::CompletionQueue* receive_cq,
                      bool only_first) {
  const os::NoCancel no_cancel;
  // A lane opens sockets, which a child that is forked meanwhile must not inherit.
  lock_process();
  struct Unlock {
    ~Unlock() { unlock_process(); }
  } unlock;
  const std::lock_guard lock(mutex_);
  const CqLanes* const send = lanes_of(send_cq);
  const CqLanes* const receive = lanes_of(receive_cq);
  Lane* lane = &first();
  if (!only_first && send != nullptr && send->is_bound()) {
    lane = &send->home();
  } else if (!only_first && receive != nullptr && receive->is_bound()) {
    lane = &receive->home();
  } else if (!only_first && (send != nullptr || receive != nullptr)) {
    lane = &least_used();
  }
  bind(send_cq, *lane, queues_);
  bind(receive_cq, *lane, queues_);
  return *lane;
}

void LaneSet::bind(core::CompletionQueue* cq, Lane& lane, std::array<int, kMaxLanes>& queues) {
  CqLanes* const lanes = lanes_of(cq);
  if (lanes == nullptr) return;
  const std::lock_guard lock(lanes->home().mutex());
  if (!lanes->is_bound()) {
    lanes->bind(lane);
    ++queues[lane.index()];
    return;
  }
  if (&lanes->home() == &lane) return;
  if (!cq->is_shared()) cq->share();
  lanes->add(lane);
}

void LaneSet::release(const CqLanes& cq) {
  const std::lock_guard lock(mutex_);
  if (cq.is_bound()) --queues_[cq.home().index()];
}

// Of several, the first. A new lane is opened only if each of the others has a completion queue.
Lane& LaneSet::least_used() {
  const auto end = queues_.begin() + static_cast<ptrdiff_t>(size());
  const auto least = std::min_element(queues_.begin(), end);
  if (*least == 0 || !add_lane()) return *lanes_[static_cast<size_t>(least - queues_.begin())];
  return *lanes_[size() - 1];
}

bool LaneSet::add_lane() {
  const size_t index = size();
  if (no_more_ || first().is_abandoned()) return false;
  if (const Instant now = runtime::now(); now >= most_until_) {
    most_ = most_lanes();
    most_until_ = now + kProcessorsValid;
  }
  if (index >= most_) return false;
  if (host::SlotDirectory::has_taken(kSlotsForLanes)) {
    log(LogLevel::Info,
        "%s: no further lane: %zu of the slots of this network namespace are taken, and the others "
        "are left to processes",
        device_.name.c_str(), kSlotsForLanes);
    return false;
  }
  std::unique_ptr<Lane> lane;
  Status started = Error{ENOMEM, "out of memory"};
  (void)try_allocating([&] {
    lane = std::make_unique<Lane>(device_, owner_, *this, memory_, index);
    started = lane->start([name = device_.name, index] {
      return "lane " + std::to_string(index) + " of " + name + "\n";
    });
  });
  if (!started.ok()) {
    log(LogLevel::Warning, "%s: no further lane: %s", device_.name.c_str(), started.error().why);
    no_more_ = true;
    return false;
  }
  lanes_[index] = std::move(lane);
  size_.store(index + 1, std::memory_order_release);
  return true;
}

void LaneSet::each_srq(const std::function<void(core::SharedReceiveQueue&)>& visit) {
  if (!first().has_engine()) return;
  for (const auto& [number, srq] : first().engine().state().srqs) visit(*srq);
}

// A lane that rebinds a window holds its own lock and waits for the lookups of the others. It need
// not wait for this call, which may be waiting for that lane.
void LaneSet::lock_all() {
  mutex_.lock();
  each([](Lane& lane) {
    lane.mutex().lock();
    lane.pause_lookups();
  });
}

void LaneSet::unlock_all() {
  each([](Lane& lane) {
    lane.resume_lookups();
    lane.mutex().unlock();
  });
  mutex_.unlock();
}

void LaneSet::lock_for_fork() {
  lock_all();
  each_srq([](core::SharedReceiveQueue& srq) { srq.lock_for_fork(); });
  memory_.lock_for_fork();
}

void LaneSet::unlock_after_fork() {
  memory_.unlock_after_fork();
  each_srq([](core::SharedReceiveQueue& srq) { srq.unlock_after_fork(); });
  unlock_all();
}

}  // namespace verbena::runtime
