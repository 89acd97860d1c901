// The port of a Nic: follows the network interface and its addresses, and delivers port events.
#include <net/if.h>

#include <cerrno>

#include "runtime/log.h"
#include "runtime/management.h"
#include "runtime/nic.h"

namespace verbena::runtime {
namespace {

// ibv_event_type values for the device and its port.
constexpr int kDeviceFatal = 8;
constexpr int kPortActive = 9;
constexpr int kPortError = 10;
constexpr int kGidChange = 18;

}  // namespace

PortState Nic::port() {
  const std::lock_guard lock(lanes_.first().mutex());
  return port_;
}

wire::Gid Nic::gid(size_t index) {
  const std::lock_guard lock(lanes_.first().mutex());
  return gids_.at(index);
}

size_t Nic::gid_table_size() {
  const std::lock_guard lock(lanes_.first().mutex());
  return gids_.size();
}

// Without an interface, each pending work request completes with an error. Only ENXIO proves that
// the interface is gone: other errors may be temporary.
void Nic::end_if_removed() {
  char name[IF_NAMESIZE];
  if (removed_ || if_indextoname(device_.interface_index, name) != nullptr || errno != ENXIO) {
    return;
  }
  removed_ = true;
  log(LogLevel::Warning, "%s: its network interface is gone", device_.name.c_str());
  lanes_.each([this](Lane& lane) {
    if (!lane.has_engine()) return;
    if (&lane == &lanes_.first()) return lane.engine().fail_all(lane.time());  // its lock is held
    lanes_.first().pause_lookups();
    const std::lock_guard lock(lane);
    lanes_.first().resume_lookups();
    lane.engine().fail_all(lane.time());
  });
  for (EventChannel* channel : listeners_) channel->push({kDeviceFatal, nullptr});
  if (management_ != nullptr) management_->report_removed();
}

void Nic::refresh_port() {
  const auto fresh = read_port_state(device_.interface_index);
  const PortState before = port_;
  port_ = fresh.value_or(PortState{});
  const bool gids_changed = [&] {
    const SpinLock::Guard guard(gids_lock_);
    return gids_.update(port_.addresses);
  }();
  const bool takes_requests = management_ != nullptr && management_->listens_everywhere();
  if (gids_changed && (takes_datagrams_ || takes_requests) && !listen_everywhere().ok()) {
    log(LogLevel::Warning, "%s: cannot receive datagrams on any address", device_.name.c_str());
  }
  for (EventChannel* channel : listeners_) {
    if (before.up != port_.up) channel->push({port_.up ? kPortActive : kPortError, nullptr});
    if (gids_changed) channel->push({kGidChange, nullptr});
  }
  if (!fresh) end_if_removed();
}

void Nic::add_listener(EventChannel* channel) {
  const std::lock_guard lock(lanes_.first().mutex());
  listeners_.push_back(channel);
}

void Nic::remove_listener(EventChannel* channel) {
  const std::lock_guard lock(lanes_.first().mutex());
  std::erase(listeners_, channel);
}

}  // namespace verbena::runtime
