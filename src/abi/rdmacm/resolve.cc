// bind, resolve and listen: find a device, a path and a port for addresses. Everything is known at
// once, so the event of a resolution is in the channel when the call returns.
#include <arpa/inet.h>

#include <fstream>

#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/id.h"
#include "abi/rdmacm/path.h"
#include "runtime/log.h"

namespace verbena::rdmacm {
namespace {

constexpr int kMaxBacklog = 1024;
constexpr Error kWrongState{EINVAL, "the identifier is not in a state that allows this"};
constexpr Error kNoScope{EINVAL, "a link-local address needs its interface (sin6_scope_id)"};

bool ipv6_only_by_default() {
  static const bool only = [] {
    std::ifstream file("/proc/sys/net/ipv6/bindv6only");
    int value = 0;
    return file >> value && value != 0;
  }();
  return only;
}

cm::Family family_of(const Id& id, const IpAddress& address) {
  if (address.family == AF_INET) {
    return id.only_family.value_or(true) ? cm::Family::Ipv4 : cm::Family::Both;
  }
  return id.only_family.value_or(ipv6_only_by_default()) ? cm::Family::Ipv6 : cm::Family::Both;
}

void say_no_device(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool ipv4 = address.gid.is_ipv4();
  inet_ntop(ipv4 ? AF_INET : AF_INET6, address.gid.bytes.data() + (ipv4 ? 12 : 0), text,
            sizeof text);
  runtime::log(runtime::LogLevel::Warning,
               "no RDMA device has the address %s: verbena devices lists those that exist and "
               "what other interfaces lack",
               text);
}

Result<Library::Local> device_of(Library& library, const IpAddress& address) {
  auto local = library.find(address.gid, address.scope);
  if (local.ok() || local.error().code != ENODEV) return local;
  if (!is_local(address)) return Error{EADDRNOTAVAIL, "not an address of this host"};
  say_no_device(address);
  return local;
}

Status attach_by_address(Id& id, const IpAddress& address) {
  auto local = device_of(*id.library, address);
  if (!local.ok()) return local.error();
  const Status attached = id.attach(local.value().device);
  if (attached.ok()) id.gid_index = local.value().gid_index;
  return attached;
}

bool is_loopback(const wire::Gid& gid) {
  return gid.is_ipv4() ? gid.bytes[12] == std::byte{127}
                       : gid == IpAddress::loopback_of(AF_INET6).gid;
}

// Connections to a loopback address use the device of lo. If lo has no device, because the
// configuration names others, they use the first device, as in the kernel's rdma_cm.
IpAddress device_address_of(Library& library, const IpAddress& address) {
  if (!is_loopback(address.gid) || library.find(address.gid, 0).ok()) return address;
  for (const LocalAddress& local : local_addresses()) {
    IpAddress other = local.address;
    if (other.gid.is_ipv4() != address.gid.is_ipv4() || other.gid.is_link_local()) continue;
    if (!library.find(other.gid, 0).ok()) continue;
    other.family = address.family;
    other.port = address.port;
    return other;
  }
  return address;
}

Status take_port(Id& id, const IpAddress& address) {
  PortBinding& binding = id.port;
  binding.space = id.space();
  binding.port = address.port;
  binding.reuse = id.reuse_address;
  binding.family = family_of(id, address);
  if (!address.is_any()) {
    binding.address = address.gid;
    binding.scope = address.scope;
  }
  const Status taken = id.library->ports.bind(binding);
  if (!taken.ok()) binding = PortBinding{};
  return taken;
}

// Binds before resolving if the program has not bound the identifier.
Status bind_source(Id& id, sa_family_t family) {
  id.port.space = id.space();
  const Status taken = id.library->ports.bind_source(id.port);
  if (!taken.ok()) return taken;
  IpAddress address = IpAddress::any_of(family);
  address.port = id.port.port;
  id.set_source(address);
  id.state = State::AddressBound;
  return {};
}

// The source address of packets to the destination. For a group the program's choice of interface
// suffices.
Result<IpAddress> choose_source(const Id& id, const IpAddress& to) {
  if (id.source.is_any()) return route_to(to, std::nullopt);
  if (to.is_multicast()) return id.source;
  return route_to(to, id.source);
}

// A wildcard destination means this host.
IpAddress target_of(const Id& id, const IpAddress& to) {
  if (!to.is_any()) return to;
  IpAddress target = id.source.is_any() ? IpAddress::loopback_of(to.family) : id.source;
  target.port = to.port;
  return target;
}

Status bind_before_resolving(Id& id, const sockaddr* source, const IpAddress& to) {
  if (source == nullptr) return bind_source(id, to.family);
  Result<IpAddress> from = read_address(source);
  return from.ok() ? bind_address(id, from.value()) : Status{from.error()};
}

Status start_listening(Id& id, uint32_t backlog) {
  const Status exclusive = id.library->ports.make_exclusive(id.port);
  if (!exclusive.ok()) return exclusive;
  cm::ListenParameters& parameters = id.listens_for;
  parameters = {};
  parameters.service_id = cm::service_id(id.space(), id.source.port);
  parameters.family = id.port.family;
  parameters.backlog = backlog;
  if (id.source.is_any()) return id.library->listen_everywhere(id);
  parameters.address = id.source.gid;
  auto local = device_of(*id.library, id.source);
  return local.ok() ? listen_on(id, *local.value().device) : Status{local.error()};
}

// A loopback address does not attach its device: the kernel's rdma_cm treats such an address like
// the wildcard, and id->verbs stays null until a connection is requested. libfabric binds to
// 127.0.0.1 and would take an attached device for the only one wanted. The device is opened
// nevertheless: see below.
Status find_device(Id& id, const IpAddress& address, bool loopback) {
  if (address.is_any()) return id.library->open_devices();
  if (!loopback) return attach_by_address(id, address);
  auto local = device_of(*id.library, address);
  return local.ok() ? Status{} : Status{local.error()};
}

}  // namespace

Status bind_address(Id& id, const IpAddress& wanted) {
  if (belongs_to_parent(id)) return kForked;
  const IpAddress address = device_address_of(*id.library, wanted);
  if (address.gid.is_link_local() && address.scope == 0) return kNoScope;
  if (!id.enter(State::Idle, State::AddressBound)) return kWrongState;
  // Devices are opened before the port is taken, because programs (qperf) send the port to their
  // peer before they listen on it.
  Status status = find_device(id, address, is_loopback(wanted.gid));
  if (status.ok()) status = take_port(id, address);
  if (!status.ok()) {
    id.detach();
    id.state = State::Idle;
    return status;
  }
  IpAddress bound = address;
  bound.port = id.port.port;
  id.set_source(bound);
  return {};
}

Status resolve_address(Id& id, const sockaddr* source, const sockaddr* destination) {
  if (belongs_to_parent(id)) return kForked;
  Result<IpAddress> to = read_address(destination);
  if (!to.ok()) return to.error();
  if (id.state == State::Idle) {
    const Status bound = bind_before_resolving(id, source, to.value());
    if (!bound.ok()) return bound;
  }
  if (id.state != State::AddressBound) return kWrongState;
  if (id.source.family != to.value().family) {
    return Error{EINVAL, "source and destination are of different families"};
  }
  const IpAddress target = device_address_of(*id.library, target_of(id, to.value()));
  Result<IpAddress> from = choose_source(id, target);
  if (!from.ok()) return from.error();
  id.set_destination(target);
  if (id.device == nullptr) {
    from.value().port = id.source.port;
    const Status attached = attach_by_address(id, from.value());
    if (!attached.ok()) {
      id.post(RDMA_CM_EVENT_ADDR_ERROR, -attached.error().code);
      return {};
    }
    id.set_source(from.value());
  }
  if (!id.enter(State::AddressBound, State::AddressResolved)) return kWrongState;
  id.post(RDMA_CM_EVENT_ADDR_RESOLVED);
  return {};
}

Status resolve_route(Id& id) {
  const Status alive = check_alive(id);
  if (!alive.ok()) return alive;
  if (!id.enter(State::AddressResolved, State::RouteResolved)) return kWrongState;
  Result<ibv_sa_path_rec> path = path_to_destination(id);
  Status status = path.ok() ? id.set_path(path.value()) : Status{path.error()};
  if (!status.ok()) {
    id.state = State::AddressResolved;
    id.post(RDMA_CM_EVENT_ROUTE_ERROR, -status.error().code);
  } else {
    id.post(RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
  return {};
}

Status listen(Id& id, int backlog) {
  const Status alive = check_alive(id);
  if (!alive.ok()) return alive;
  if (id.state == State::Idle) {
    const Status bound = bind_address(id, IpAddress::any_of(AF_INET));
    if (!bound.ok()) return bound;
  }
  if (!id.enter(State::AddressBound, State::Listen)) return kWrongState;
  const bool usual = backlog <= 0 || backlog > kMaxBacklog;
  const Status status = start_listening(id, static_cast<uint32_t>(usual ? kMaxBacklog : backlog));
  if (!status.ok()) {
    stop_listening(id);
    id.state = State::AddressBound;
  }
  return status;
}

}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT int rdma_bind_addr(rdma_cm_id* id, sockaddr* addr) {
  return outcome_of("rdma_bind_addr", [&]() -> Status {
    Result<IpAddress> address = read_address(addr);
    if (!address.ok()) return address.error();
    return bind_address(*from(id), address.value());
  });
}

VERBENA_EXPORT int rdma_resolve_addr(rdma_cm_id* id, sockaddr* src_addr, sockaddr* dst_addr, int) {
  return start_and_complete(id, [&] {
    return outcome_of("rdma_resolve_addr",
                      [&] { return resolve_address(*from(id), src_addr, dst_addr); });
  });
}

VERBENA_EXPORT int rdma_resolve_route(rdma_cm_id* id, int) {
  return start_and_complete(id, [&] {
    return outcome_of("rdma_resolve_route", [&] { return resolve_route(*from(id)); });
  });
}

VERBENA_EXPORT int rdma_listen(rdma_cm_id* id, int backlog) {
  return outcome_of("rdma_listen", [&] { return listen(*from(id), backlog); });
}

}  // extern "C"
