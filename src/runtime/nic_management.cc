// Implements ManagementHost for the connection manager.
#include <time.h>

#include "base/exhaustion.h"
#include "runtime/config.h"
#include "runtime/management.h"
#include "runtime/nic.h"
#include "runtime/process.h"

namespace verbena::runtime {
namespace {

// Nobody forwards the datagram again.
wire::RxMeta routed(wire::RxMeta meta) {
  meta.forwarded = true;
  return meta;
}

}  // namespace

Management& Nic::management() {
  if (management_ == nullptr) {
    ManagementHost& host = *this;
    management_ = std::make_unique<Management>(
        host, cm::AgentConfig{.slot = lanes_.first().slot(),
                              .secret = {random_secret(), random_secret()},
                              .ca_guid = device_.guid});
    lanes_.first().wake_thread();  // to sleep on one more descriptor
  }
  return *management_;
}

ConnectionManager* Nic::connection_manager() {
  if (is_abandoned()) return nullptr;
  Guard guard(*this);
  return &management();
}

void Nic::on_management(Lane& lane, Instant at) {
  if (&lane == &lanes_.first()) {
    lane.request_delivery();
    return management().turn(at);
  }
  // Management is in the first lane, which routes the datagram. A datagram for all processes was
  // forwarded to each lane, and so to the first one too.
  core::ManagementDatagram datagram;
  while (lane.engine().management().take(datagram)) {
    if (datagram.meta.forwarded) continue;
    const bool had_memory = try_allocating([&] {
      lane.datapath().wire->forward(lanes_.first().slot(), datagram.packet, datagram.meta);
    });
    if (!had_memory) lane.on_exhaustion();
  }
}

void Nic::unlock_management() {
  lanes_.first().request_delivery();
  lanes_.first().unlock();
}

// Packets that another process forwards are late, may be overtaken, and are lost when that process
// ends. For UC a packet out of order is a lost message; for RC a lost ACK is a timeout. So the peer
// learns that this process is ready only after the kernel steers packets to it.
void Nic::await_steering_of(Lane& lane) {
  constexpr Duration kTimeout = milliseconds(200);
  const Instant until = runtime::now() + kTimeout;
  while (runtime::now() < until) {
    {
      Guard guard(lane);
      if (is_abandoned() || lane.datapath().wire->is_ready()) return;
      lane.make_progress();
      lane.datapath().wire->poll_directory();
    }
    const timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
  }
}

Status Nic::listen(const wire::Gid& address) {
  return lanes_.first().datapath().wire->listen(address);
}

// Succeeds if one address can be listened on.
Status Nic::listen_everywhere() {
  Status first;
  bool any = false;
  for (size_t i = 0; i < gids_.size(); ++i) {
    if (gids_.at(i).is_zero()) continue;
    Status listening = listen(gids_.at(i));
    any |= listening.ok();
    if (!listening.ok() && first.ok()) first = listening;
  }
  return any ? Status{} : first;
}

Result<wire::PathId> Nic::open_management_path(const wire::Route& route) {
  wire::Route classed = route;
  classed.traffic_class = config().traffic_class(route.traffic_class, 0);
  auto path = lanes_.first().datapath().all->open_path(classed);
  return path.ok() ? reference(path.value()) : path;
}

void Nic::release_management_path(wire::PathId path) {
  lanes_.first().engine().state().paths.release(path);
}

void Nic::report_unreachable_hosts(bool on) {
  lanes_.first().datapath().wire->report_unreachable_hosts(on);
}

std::optional<datapath::UnreachableHost> Nic::take_unreachable_host() {
  return lanes_.first().datapath().wire->take_unreachable_host();
}

host::Forwarded Nic::forward(uint8_t slot, const core::ManagementDatagram& datagram) {
  return lanes_.first().datapath().wire->forward(slot, datagram.packet, routed(datagram.meta));
}

host::Forwarded Nic::forward(std::span<const host::ServiceName> services,
                             const core::ManagementDatagram& datagram) {
  return lanes_.first().datapath().wire->forward(services, datagram.packet, routed(datagram.meta));
}

void Nic::forward_to_everyone(const core::ManagementDatagram& datagram) {
  lanes_.first().datapath().wire->forward_to_everyone(datagram.packet, routed(datagram.meta));
}

Status Nic::claim_service(const host::ServiceName& name) {
  return lanes_.first().datapath().directory->claim_service(name);
}

void Nic::release_service(const host::ServiceName& name) {
  lanes_.first().datapath().directory->release_service(name);
}

bool Nic::is_claimed(const host::ServiceName& name) const {
  return host::SlotDirectory::is_claimed(name);
}

void Nic::update_services() { lanes_.first().datapath().wire->update_services(); }

}  // namespace verbena::runtime
