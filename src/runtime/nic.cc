// Opening and closing a Nic, and the events that it delivers.
#include "runtime/nic.h"

#include <algorithm>
#include <mutex>

#include "base/exhaustion.h"
#include "runtime/failure_text.h"
#include "runtime/log.h"
#include "runtime/management.h"
#include "runtime/process.h"

namespace verbena::runtime {
namespace {

// How long a process that ends waits for its last packets to leave.
constexpr Duration kExitTimeout = milliseconds(100);

}  // namespace

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

Nic::Nic(const DeviceInfo& device) : device_(device), port_(device.port) {
  gids_.update(port_.addresses);
}

Status Nic::start() {
  refresh_port();  // the monitor already listens, so no later change is missed
  return lane_.start([this] { return "device " + device_.name + "\n" + counters_text(); });
}

// Ends the thread, and waits for the direct copies of peers.
void Nic::stop() {
  if (!lane_.is_running()) return;  // start() failed
  lane_.stop();
  datapath::PeerAccess* const memory = peer_access();
  if (memory == nullptr) return;
  Copies copies;
  {
    const Guard guard(*this);
    memory->withdraw_all();
    memory->revoke_copies(datapath::kAllMemory, copies);
  }
  await_end_of(copies);
}

Nic::~Nic() {
  if (lane_.is_open()) lane_.forward_remaining_packets();
}

void Nic::abandon_in_child() {
  lane_.abandon();
  monitor_.abandon();
  if (management_ != nullptr) management_->abandon();
  for (EventChannel* channel : listeners_) channel->abandon();
}

void Nic::transmit_at_exit() {
  if (is_abandoned() || !lock_within(lane_.mutex(), kExitTimeout)) return;
  if (management_ != nullptr) management_->disconnect_all(runtime::now());
  const Instant until = runtime::now() + kExitTimeout;
  do {
    lane_.transmit(lane_.time());
  } while (lane_.engine().management().anything_to_send() && runtime::now() < until);
  lane_.forward_remaining_packets();
  lane_.mutex().unlock();
}

BackgroundThread::ExtraFds Nic::control_fds() const {
  return {monitor_.fd(), management_ != nullptr ? management_->departures_fd() : -1};
}

void Nic::on_wakeup(const BackgroundThread::Wakeup& wakeup) {
  const auto [interface_changes, departures] = wakeup.extra;
  if (interface_changes && monitor_.drain()) port_changed_ = true;
  if (port_changed_) {
    refresh_port();
    port_changed_ = false;
  }
  if (management_ != nullptr && (departures || management_->departures_pending())) {
    lane_.request_delivery();
    management_->on_departures(wakeup.at);
    lane_.deliver();
  }
}

void Nic::deliver_events() {
  const os::NoCancel no_cancel;
  if (management_ != nullptr) {
    management_->deliver_events();
    if (management_->has_events()) lane_.request_delivery();  // for lack of memory
  }
  core::EngineState& state = lane_.engine().state();
  // Events without memory for them stay and are delivered later.
  std::erase_if(state.notified, [](const core::CompletionQueue* cq) {
    const auto* owner = static_cast<const Owner*>(cq->owner);
    return owner == nullptr || owner->completion_channel == nullptr ||
           owner->completion_channel->push({0, owner->object});
  });
  std::erase_if(state.events, [](const core::AsyncEvent& e) {
    void* first = e.qp != nullptr ? e.qp->owner : e.srq != nullptr ? e.srq->owner : e.cq->owner;
    return push_to_all(static_cast<const Owner*>(first), static_cast<int>(e.kind));
  });
  if (!state.notified.empty() || !state.events.empty()) [[unlikely]]
    lane_.on_exhaustion();
  for (const core::QpFailure& failure : state.failures) {
    (void)try_allocating(
        [&] { log(LogLevel::Info, "%s: %s", device_.name.c_str(), describe(failure).c_str()); });
  }
  state.failures.clear();
  for (const wire::PathId path : state.paths.idle()) lane_.datapath().all->close_path(path);
  state.paths.idle().clear();
}

std::string Nic::counters_text() {
  // A request for counters may be read inside a turn of this Nic or of another one: never wait.
  std::unique_lock lock(lane_.mutex(), std::defer_lock);
  if (!lane_.is_in_turn() && !lock.try_lock()) return "  (busy, ask again)\n";
  std::string text;
  const auto add = [&](const std::string& name, uint64_t value, const char* meaning) {
    text += name + " " + std::to_string(value) + " " + meaning + "\n";
  };
  add("queue_pairs", lane_.engine().qp_count(), "queue pairs that exist now");
  add("memory_keys", lane_.engine().memory().live(), "memory regions and windows registered now");
  for (size_t i = 0; i < static_cast<size_t>(core::CounterId::kCount); ++i) {
    const auto id = static_cast<core::CounterId>(i);
    add(core::name_of(id), lane_.engine().state().counters[id], core::meaning_of(id));
  }
  for (size_t i = 0; management_ != nullptr && i < static_cast<size_t>(cm::CounterId::kCount);
       ++i) {
    const auto id = static_cast<cm::CounterId>(i);
    add(std::string("cm_") + cm::name_of(id), management_->counters()[id], cm::meaning_of(id));
  }
  std::vector<datapath::Counter> more;
  if (!is_abandoned()) lane_.datapath().all->append_counters(more);
  for (const datapath::Counter& c : more) add(c.name, c.value, c.meaning);
  return text;
}

}  // namespace verbena::runtime
