// Opening and closing a Nic, and the events that it delivers.
#include "runtime/nic.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/exhaustion.h"
#include "base/pause.h"
#include "runtime/failure_text.h"
#include "runtime/log.h"
#include "runtime/management.h"
#include "runtime/process.h"

namespace verbena::runtime {

Result<std::shared_ptr<Nic>> Nic::open(const DeviceInfo& device) {
  lock_process();
  struct Unlock {
    ~Unlock() { unlock_process(); }
  } unlock;
  if (auto nic = find_nic(device.interface_index)) return nic;
  std::shared_ptr<Nic> nic(new Nic(device), [](Nic* closing) {
    // A peer's direct copy may take a while; other threads may open devices and fork meanwhile.
    if (!closing->is_abandoned()) closing->stop();
    lock_process();  // until its sockets are closed, so that no forked child inherits them
    unregister_nic(closing);
    delete closing;
    unlock_process();
  });
  const Status started = nic->start();
  if (!started.ok()) {
    unlock_process();  // the deleter takes it
    nic.reset();
    lock_process();
    log(LogLevel::Error, "%s cannot be opened: %s", device.name.c_str(), started.error().why);
    return started.error();
  }
  register_nic(device.interface_index, nic);
  return nic;
}

Nic::Nic(const DeviceInfo& device)
    : device_(device), memory_(random_secret(), this), port_(device.port) {
  gids_.update(port_.addresses);
}

Status Nic::start() {
  refresh_port();  // the monitor already listens, so no later change is missed
  return lanes_.first().start([this] { return "device " + device_.name + "\n" + counters_text(); });
}

// Ends the threads, and waits for the direct copies of peers.
void Nic::stop() {
  if (!lanes_.first().is_running()) return;  // start() failed
  lanes_.each([](Lane& lane) { lane.stop(); });
  lanes_.each([this](Lane& lane) {
    datapath::PeerAccess* const access = lane.datapath().peer_access();
    if (access == nullptr) return;
    Copies copies;
    {
      const Guard guard(lane);
      access->withdraw_all();
      access->revoke_copies(datapath::kAllMemory, copies);
    }
    await_end_of(lane, copies);
  });
}

Nic::~Nic() {
  lanes_.each([](Lane& lane) {
    if (lane.is_open()) lane.forward_remaining_packets();
  });
}

void Nic::abandon_in_child() {
  abandoned_.store(true, std::memory_order_relaxed);
  lanes_.each([](Lane& lane) { lane.abandon(); });
}

void Nic::transmit_at_exit(Instant until) {
  if (is_abandoned()) return;
  lanes_.each([&](Lane& lane) {
    if (!lock_until(lane.mutex(), until)) return;
    const bool is_first = &lane == &lanes_.first();
    if (is_first && management_ != nullptr) management_->disconnect_all(runtime::now());
    do {
      lane.transmit(lane.time());
    } while (lane.engine().management().anything_to_send() && runtime::now() < until);
    lane.forward_remaining_packets();
    lane.mutex().unlock();
  });
}

BackgroundThread::ExtraFds Nic::control_fds(const Lane& lane) const {
  if (&lane != &lanes_.first()) return {-1, -1};
  return {monitor_.fd(), management_ != nullptr ? management_->departures_fd() : -1};
}

void Nic::on_wakeup(Lane& lane, const BackgroundThread::Wakeup& wakeup) {
  if (&lane != &lanes_.first()) return;
  const auto [interface_changes, departures] = wakeup.extra;
  if (interface_changes && monitor_.drain()) port_changed_ = true;
  if (port_changed_) {
    refresh_port();
    port_changed_ = false;
  }
  if (management_ != nullptr && (departures || management_->departures_pending())) {
    lane.request_delivery();
    management_->on_departures(wakeup.at);
    lane.deliver();
  }
}

void Nic::deliver_events(Lane& lane) {
  const os::NoCancel no_cancel;
  if (&lane == &lanes_.first() && management_ != nullptr) {
    management_->deliver_events();
    if (management_->has_events()) lane.request_delivery();  // for lack of memory
  }
  core::EngineState& state = lane.engine().state();
  // Events without memory for them stay and are delivered later.
  std::erase_if(state.notified, [](const core::CompletionQueue* cq) {
    const auto* owner = static_cast<const Owner*>(cq->owner);
    return owner == nullptr || owner->completion_channel == nullptr ||
           owner->completion_channel->push({0, owner->object});
  });
  std::erase_if(state.events, [&](const core::AsyncEvent& e) {
    void* first = e.qp != nullptr ? e.qp->owner : e.srq != nullptr ? e.srq->owner : e.cq->owner;
    const SpinLock::Guard guard(async_events_lock_);
    return push_to_all(static_cast<const Owner*>(first), static_cast<int>(e.kind));
  });
  if (!state.notified.empty() || !state.events.empty()) [[unlikely]]
    lane.on_exhaustion();
  for (const core::QpFailure& failure : state.failures) {
    (void)try_allocating(
        [&] { log(LogLevel::Info, "%s: %s", device_.name.c_str(), describe(failure).c_str()); });
  }
  state.failures.clear();
  if (std::exchange(state.shared_overrun, false)) {
    lanes_.each([&](Lane& other) {
      if (&other != &lane) other.report_overrun();
    });
  }
  for (const wire::PathId path : state.paths.idle()) lane.datapath().all->close_path(path);
  state.paths.idle().clear();
}

namespace {

// In the order in which the names first appear.
class CounterSums {
 public:
  void add(const std::string& name, uint64_t value, const char* meaning) {
    const auto known = std::ranges::find(sums_, name, &Sum::name);
    if (known != sums_.end()) {
      known->value += value;
    } else {
      sums_.push_back({name, value, meaning});
    }
  }
  std::string text() const {
    std::string text;
    for (const Sum& s : sums_)
      text += s.name + " " + std::to_string(s.value) + " " + s.meaning + "\n";
    return text;
  }

 private:
  struct Sum {
    std::string name;
    uint64_t value;
    std::string meaning;
  };
  std::vector<Sum> sums_;
};

void add_counters(Lane& lane, CounterSums& sums) {
  sums.add("queue_pairs", lane.engine().qp_count(), "queue pairs that exist now");
  for (size_t i = 0; i < static_cast<size_t>(core::CounterId::kCount); ++i) {
    const auto id = static_cast<core::CounterId>(i);
    sums.add(core::name_of(id), lane.engine().state().counters[id], core::meaning_of(id));
  }
  std::vector<datapath::Counter> more;
  if (!lane.is_abandoned()) lane.datapath().all->append_counters(more);
  for (const datapath::Counter& c : more) sums.add(c.name, c.value, c.meaning);
}

// Which lane is busy.
void add_counters_of_lane(Lane& lane, CounterSums& sums) {
  const std::string name = "lane_" + std::to_string(lane.index());
  const core::Counters& counters = lane.engine().state().counters;
  sums.add(name + "_queue_pairs", lane.engine().qp_count(), "of them, in this lane");
  sums.add(name + "_sent", counters[core::CounterId::packets_sent], "packets_sent of this lane");
  sums.add(name + "_received", counters[core::CounterId::packets_received],
           "packets_received of this lane");
}

}  // namespace

std::string Nic::counters_text() {
  // A request for counters may be read inside a turn of any lane: never wait for long.
  constexpr int kTries = 1000;
  CounterSums sums;
  bool busy = false;
  sums.add("lanes", lanes_.size(), "lanes that serve the threads of this process");
  sums.add("memory_keys", memory_.live(), "memory regions and windows registered now");
  const auto under_lock = [&](Lane& lane, const std::function<void()>& read) {
    if (busy || lane.is_in_turn()) return busy ? void() : read();
    std::unique_lock lock(lane.mutex(), std::defer_lock);
    for (int i = 0; i < kTries && !lock.try_lock(); ++i) pause_cpu();
    busy = !lock.owns_lock();
    if (!busy) read();
  };
  CounterSums of_lanes;
  lanes_.each([&](Lane& lane) {
    under_lock(lane, [&] {
      add_counters(lane, sums);
      add_counters_of_lane(lane, of_lanes);
    });
  });
  under_lock(lanes_.first(), [&] {
    if (management_ == nullptr) return;
    for (size_t i = 0; i < static_cast<size_t>(cm::CounterId::kCount); ++i) {
      const auto id = static_cast<cm::CounterId>(i);
      sums.add(std::string("cm_") + cm::name_of(id), management_->counters()[id],
               cm::meaning_of(id));
    }
  });
  if (busy) return "  (busy, ask again)\n";
  return lanes_.size() > 1 ? sums.text() + of_lanes.text() : sums.text();
}

}  // namespace verbena::runtime
