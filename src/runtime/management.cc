// Which process a management datagram is for, and the calls of librdmacm.
#include "runtime/management.h"

#include <algorithm>

#include "base/exhaustion.h"
#include "cm/ip_addressing.h"
#include "cm/route.h"
#include "host/local_address.h"
#include "runtime/connection_text.h"
#include "runtime/log.h"

namespace verbena::runtime {
namespace {

using host::Forwarded;
using host::ServiceName;

constexpr Error kForked{EIO, "the device was opened before a fork; open it again in the child"};
constexpr size_t kMaxPaths = 1024;

// The names under which a listener for `address` may be found, the more exact one first.
std::array<ServiceName, 2> names_for(uint32_t interface_index, uint64_t service_id,
                                     const wire::Gid& address) {
  using Where = ServiceName::Where;
  return {{{interface_index, service_id, Where::Address, address},
           {interface_index, service_id, address.is_ipv4() ? Where::AnyIpv4 : Where::AnyIpv6, {}}}};
}

// The destination address of a request. A request without one matches no listener.
std::optional<wire::Gid> destination_of(std::span<const std::byte> bytes) {
  cm::Mad mad;
  std::ranges::copy(bytes, mad.begin());
  const bool sidr = cm::MadHeader::load(mad.data()).attribute == cm::Attribute::SidrReq;
  const auto ip = sidr ? cm::IpHeader::load(cm::SidrReq::load(mad).private_data.data())
                       : cm::IpHeader::load(cm::Req::load(mad).private_data.data());
  if (!ip) return std::nullopt;
  return ip->destination;
}

// Messages that may name a queue pair which has a connection already.
bool may_be_stale(std::span<const std::byte> bytes) {
  if (!cm::is_cm_mad(bytes)) return false;
  const cm::Attribute attribute = cm::MadHeader::load(bytes.data()).attribute;
  return attribute == cm::Attribute::Req || attribute == cm::Attribute::Rep;
}

}  // namespace

Management::Management(ManagementHost& host, const cm::AgentConfig& config)
    : host_(host), slot_(config.slot), agent_(config), lifelines_(config.slot) {}

// ------------------------------------------------------------------------------ under the lock

void Management::turn(Instant at) {
  core::ManagementDatagram datagram;
  while (host_.management_port().take(datagram)) {
    if (!try_allocating([&] { route(datagram, at); })) host_.on_exhaustion();
  }
  if (agent_.next_deadline() <= at) {
    // A peer has not replied. From now on the kernel reports unreachable hosts. Earlier reports are
    // handled first.
    if (!try_allocating([&] { handle_unreachable_hosts(at); })) host_.on_exhaustion();
    agent_.on_deadline(at);
    host_.report_unreachable_hosts(agent_.next_deadline() != kNever);
  }
  post_outgoing();
}

void Management::handle_unreachable_hosts(Instant at) {
  constexpr size_t kTid = core::ManagementDatagram::kHeaderBytes + cm::MadHeader::kBytes;
  constexpr int kMaxReports = 64;  // an attacker can cause any number of reports
  std::vector<cm::UnreachableHost> unreachable_hosts;
  for (int i = 0; i < kMaxReports; ++i) {
    const auto unreachable = host_.take_unreachable_host();
    if (!unreachable) break;
    if (unreachable->bytes < kTid) continue;
    const std::byte* const mad =
        unreachable->packet.data() + core::ManagementDatagram::kHeaderBytes;
    unreachable_hosts.push_back(
        {unreachable->host, cm::MadHeader::load(mad).tid, unreachable->error});
  }
  if (!unreachable_hosts.empty()) agent_.hosts_unreachable(unreachable_hosts, at);
}

void Management::route(const core::ManagementDatagram& datagram, Instant at) {
  const cm::Route route = cm::route_of(datagram.mad());
  if (datagram.meta.forwarded) return to_agent(datagram, false, at);  // forwarded at most once
  switch (route.kind) {
    case cm::Route::Kind::Slot:
      return to_slot(datagram, route.slot, at);
    case cm::Route::Kind::Service:
      return to_listener(datagram, route.service_id, at);
    case cm::Route::Kind::AllProcesses:
      host_.forward_to_everyone(datagram);
      return to_agent(datagram, false, at);
    case cm::Route::Kind::None:
      return to_agent(datagram, false, at);  // the agent counts it
  }
}

void Management::to_slot(const core::ManagementDatagram& datagram, uint8_t slot, Instant at) {
  if (slot == slot_) return to_agent(datagram, false, at);
  if (host_.forward(slot, datagram) == Forwarded::NoReceiver) {
    to_agent(datagram, true, at);
  }
}

// The process that finds no listener rejects the request.
void Management::to_listener(const core::ManagementDatagram& datagram, uint64_t service_id,
                             Instant at) {
  const auto destination = destination_of(datagram.mad());
  if (!destination || agent_.listens(service_id, *destination)) {
    return to_agent(datagram, false, at);
  }
  const auto names = names_for(host_.device().interface_index, service_id, *destination);
  if (host_.forward(names, datagram) == Forwarded::NoReceiver) {
    to_agent(datagram, false, at);
  }
}

void Management::to_agent(const core::ManagementDatagram& datagram, bool slot_is_unclaimed,
                          Instant at) {
  const cm::ReceivedMad mad{.source = datagram.meta.source,
                            .destination = datagram.meta.destination,
                            .bytes = datagram.mad(),
                            // The ECN bits belong to this datagram only.
                            .traffic_class = wire::dscp_of(datagram.meta.traffic_class),
                            .slot_is_unclaimed = slot_is_unclaimed,
                            .from_watched_host = may_be_stale(datagram.mad()) &&
                                                 departures_fd() >= 0 &&
                                                 is_this_host(datagram.meta.source)};
  const cm::Counters before = agent_.counters();
  agent_.on_mad(mad, at);
  if (log_enabled(LogLevel::Info)) explain_refusal(mad, before, at);
}

// Peers can cause any number of these lines.
void Management::log_limited(LogLimit& limit, const char* text, Instant at) {
  const auto suppressed = limit.pass(at);
  if (!suppressed) return;
  if (*suppressed == 0) return log(LogLevel::Info, "%s: %s", host_.device().name.c_str(), text);
  log(LogLevel::Info, "%s: %s (%llu similar lines were suppressed)", host_.device().name.c_str(),
      text, static_cast<unsigned long long>(*suppressed));
}

void Management::explain_refusal(const cm::ReceivedMad& mad, const cm::Counters& before,
                                 Instant at) {
  for (size_t i = 0; i < before.values.size(); ++i) {
    if (agent_.counters().values[i] == before.values[i]) continue;
    const std::string text = describe_refusal(mad, static_cast<cm::CounterId>(i));
    if (!text.empty()) log_limited(refusal_lines_[i], text.c_str(), at);
  }
}

// Moves MADs from the agent to queue pair 1. A MAD without a path is dropped, as on the network;
// the agent retransmits it.
void Management::post_outgoing() {
  cm::OutgoingMad out;
  while (agent_.next_mad(out)) {
    const bool had_memory = try_allocating([&] {
      auto path = path_to({out.source, out.destination, out.traffic_class});
      if (path.ok()) host_.management_port().send(path.value(), out.bytes);
    });
    if (!had_memory) host_.on_exhaustion();
  }
  host_.set_management_deadline(agent_.next_deadline());
  if (agent_.next_deadline() == kNever) host_.report_unreachable_hosts(false);
}

// Opening a path takes several system calls, so paths stay open, one for each pair of hosts.
Result<wire::PathId> Management::path_to(const PathKey& key) {
  if (const auto known = paths_.find(key); known != paths_.end()) return known->second;
  const auto& [source, destination, traffic_class] = key;
  if (source.is_zero() || destination.is_zero() || destination.is_multicast()) {
    return Error{EADDRNOTAVAIL, "not the address of a host"};
  }
  auto path = host_.open_management_path({.source = source,
                                          .destination = destination,
                                          .peer = wire::kManagementQpn,
                                          .traffic_class = traffic_class});
  if (!path.ok()) {
    log_limited(path_lines_, path.error().why, host_.recent_time());
    return path;
  }
  if (paths_.size() >= kMaxPaths) {
    for (const auto& [old, id] : paths_) host_.release_management_path(id);
    paths_.clear();
  }
  if (!try_allocating([&] { paths_.emplace(key, path.value()); })) {
    host_.release_management_path(path.value());
    return Error{ENOMEM, "out of memory"};
  }
  return path;
}

bool Management::is_this_host(const wire::Gid& gid) const {
  return host_.gids().contains(gid) ||
         host::is_local(host::local_address(gid, host_.device().interface_index));
}

// The process that requested the connection opens the lifeline for both.
void Management::watch_peer(uint32_t id, Instant at) {
  const cm::ConnectionInfo* const info = agent_.info(id);
  if (info == nullptr || !is_this_host(info->addresses.peer_gid)) return;
  const uint8_t slot = agent_.peer_slot(id);
  if (!lifelines_.watch(slot)) end_connections_with(slot, at);
}

void Management::end_connections_with(uint8_t slot, Instant at) {
  for (const wire::Gid& peer : agent_.peers_of_slot(slot)) {
    if (is_this_host(peer)) agent_.peer_gone(peer, slot, at);
  }
}

void Management::on_departures(Instant at) {
  for (const uint8_t slot : lifelines_.take_departed()) departed_.set(slot);
  for (size_t slot = 0; departed_.any() && slot < departed_.size(); ++slot) {
    if (!departed_.test(slot)) continue;
    end_connections_with(static_cast<uint8_t>(slot), at);
    departed_.reset(slot);
  }
  post_outgoing();
}

void Management::disconnect_all(Instant at) {
  (void)try_allocating([&] { agent_.destroy_all(at); });  // otherwise peers time out
  post_outgoing();
}

void Management::deliver_events() {
  if (!agent_.has_events()) return;
  cm::Event event;
  while (agent_.has_events()) {
    // An event without memory for it stays and is delivered later.
    if (sink_ != nullptr && !sink_->on_event(agent_.first_event())) return host_.on_exhaustion();
    agent_.next_event(event);
    if (log_enabled(LogLevel::Info)) {
      (void)try_allocating([&] {
        const std::string text = describe(event);
        if (text.empty()) return;
        if (!event.active) return log_limited(event_lines_, text.c_str(), host_.recent_time());
        log(LogLevel::Info, "%s: %s", host_.device().name.c_str(), text.c_str());
      });
    }
  }
}

// ----------------------------------------------------------------------------------- the calls

// Each call takes the lock, calls the agent, and sends the resulting MADs at once. Events are
// delivered when the lock is released.
template <typename Call>
auto Management::call(Call&& work) -> decltype(work(Instant{})) {
  if (host_.is_abandoned()) return kForked;
  const ManagementHost::Guard guard(host_);
  const Instant at = host_.time();
  auto result = work(at);
  post_outgoing();
  if (host_.management_port().anything_to_send()) host_.transmit(at);
  return result;
}

void Management::set_sink(Sink* sink) {
  const ManagementHost::Guard guard(host_);
  sink_ = sink;
  if (host_.removed()) report_removed();
}

uint32_t Management::interface_index() const { return host_.device().interface_index; }

Status Management::open_addresses(const cm::ListenParameters& parameters) {
  if (!parameters.address) return host_.listen_everywhere();
  if (!host_.gids().contains(*parameters.address)) {
    return Error{EADDRNOTAVAIL, "the device does not have the address to listen on"};
  }
  return host_.listen(*parameters.address);
}

// Among the processes of a host, a listener on one address and one on every address exclude each
// other. (Within a process the agent checks that.) Two processes that try at the same moment may
// both be refused.
bool Management::collides(const ServiceName& name) const {
  using Where = ServiceName::Where;
  if (name.where == Where::Address) {
    return host_.is_claimed(names_for(name.interface_index, name.service_id, name.address)[1]);
  }
  for (size_t i = 0; i < host_.gids().size(); ++i) {
    const wire::Gid gid = host_.gids().at(i);
    if (gid.is_zero() || gid.is_ipv4() != (name.where == Where::AnyIpv4)) continue;
    const ServiceName exact = {name.interface_index, name.service_id, Where::Address, gid};
    if (host_.is_claimed(exact)) return true;
  }
  return false;
}

Status Management::claim(const cm::ListenParameters& parameters,
                         std::vector<ServiceName>& claimed) {
  using Where = ServiceName::Where;
  std::vector<ServiceName> wanted;
  const auto want = [&](Where where, const wire::Gid& address = {}) {
    wanted.push_back({host_.device().interface_index, parameters.service_id, where, address});
  };
  if (parameters.address) {
    want(Where::Address, *parameters.address);
  } else {
    if (parameters.family != cm::Family::Ipv6) want(Where::AnyIpv4);
    if (parameters.family != cm::Family::Ipv4) want(Where::AnyIpv6);
  }
  claimed.reserve(wanted.size());
  for (const ServiceName& name : wanted) {
    Status status = host_.claim_service(name);
    if (!status.ok()) return status;
    claimed.push_back(name);
    if (collides(name)) return Error{EADDRINUSE, "another process listens on this port"};
  }
  return {};
}

// Without memory, the next round of steering updates the kernel and the other processes.
void Management::update_services() {
  if (!try_allocating([&] { host_.update_services(); })) host_.on_exhaustion();
}

void Management::release(const std::vector<ServiceName>& names) {
  for (const ServiceName& name : names) host_.release_service(name);
}

Result<uint32_t> Management::listen(const cm::ListenParameters& parameters) {
  auto listener = call([&](Instant) -> Result<uint32_t> {
    auto id = agent_.listen(parameters);
    if (!id.ok()) return id;
    Status status = Error{ENOMEM, "out of memory"};
    (void)try_allocating([&] {
      status = claim(parameters, claims_[id.value()]);
      if (status.ok())
        status = open_addresses(parameters);  // slow; requests may be received meanwhile
    });
    if (!status.ok()) {
      if (const auto claimed = claims_.find(id.value()); claimed != claims_.end()) {
        release(claimed->second);
        claims_.erase(claimed);
      }
      (void)agent_.stop_listening(id.value());
      return status.error();
    }
    update_services();
    if (!parameters.address) ++wildcards_;
    return id;
  });
  if (listener.ok()) host_.await_steering();
  return listener;
}

Status Management::stop_listening(uint32_t listener) {
  return call([&](Instant) -> Status {
    const auto names = claims_.find(listener);
    if (names == claims_.end()) return Error{EINVAL, "no such listener"};
    if (names->second.front().where != ServiceName::Where::Address) --wildcards_;
    release(names->second);
    claims_.erase(names);
    update_services();
    return agent_.stop_listening(listener);
  });
}

void Management::request_taken(uint32_t id) {
  (void)call([&](Instant) -> Status {
    agent_.request_taken(id);
    return {};
  });
}

// The kernel delivers replies directly to this process only when steering knows its slot. A caller
// without a path to the peer gets an error now instead of a timeout after a minute.
Status Management::prepare_request(const cm::Addresses& addresses, uint8_t traffic_class) {
  const Status opened = call([&](Instant) -> Status {
    const auto path = path_to({addresses.local_gid, addresses.peer_gid, traffic_class});
    return path.ok() ? Status{} : Status{path.error()};
  });
  if (opened.ok()) host_.await_steering();
  return opened;
}

Result<uint32_t> Management::connect(const cm::ConnectParameters& parameters) {
  const Status ready = prepare_request(parameters.addresses, parameters.traffic_class);
  if (!ready.ok()) return ready.error();
  return call([&](Instant at) { return agent_.connect(parameters, at); });
}

Status Management::accept(uint32_t id, const cm::AcceptParameters& parameters) {
  return call([&](Instant at) { return agent_.accept(id, parameters, at); });
}

Status Management::establish(uint32_t id, std::span<const std::byte> private_data) {
  return call([&](Instant at) {
    Status established = agent_.establish(id, private_data);
    if (established.ok()) watch_peer(id, at);
    return established;
  });
}

Status Management::reject(uint32_t id, cm::RejectReason reason, std::span<const std::byte> ari,
                          std::span<const std::byte> private_data) {
  return call([&](Instant at) { return agent_.reject(id, reason, ari, private_data, at); });
}

Status Management::disconnect(uint32_t id, std::span<const std::byte> private_data) {
  return call([&](Instant at) { return agent_.disconnect(id, private_data, at); });
}

Status Management::notify_established(uint32_t id) {
  return call([&](Instant) { return agent_.notify_established(id); });
}

void Management::destroy(uint32_t id) {
  (void)call([&](Instant at) -> Status {
    agent_.destroy(id, at);
    return {};
  });
}

Result<cm::ConnectionInfo> Management::info(uint32_t id) {
  return call([&](Instant) -> Result<cm::ConnectionInfo> {
    const cm::ConnectionInfo* info = agent_.info(id);
    if (info == nullptr) return Error{ENOENT, "no such connection, or it has ended"};
    return *info;
  });
}

Result<uint32_t> Management::resolve_sidr(const cm::SidrParameters& parameters) {
  const Status ready = prepare_request(parameters.addresses, parameters.traffic_class);
  if (!ready.ok()) return ready.error();
  return call([&](Instant at) { return agent_.resolve_sidr(parameters, at); });
}

Status Management::reply_sidr(uint32_t id, const cm::SidrReply& reply) {
  return call([&](Instant at) { return agent_.reply_sidr(id, reply, at); });
}

Result<cm::SidrInfo> Management::sidr_info(uint32_t id) {
  return call([&](Instant) -> Result<cm::SidrInfo> {
    const cm::SidrInfo* info = agent_.sidr_info(id);
    if (info == nullptr) return Error{ENOENT, "no such exchange, or it has ended"};
    return *info;
  });
}

}  // namespace verbena::runtime
