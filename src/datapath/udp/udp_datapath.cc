// Endpoints and paths of the UDP datapath. UdpReceiver and UdpSender move the packets.
#include "datapath/udp/udp_datapath.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/exhaustion.h"
#include "datapath/udp/clock.h"
#include "datapath/udp/egress.h"
#include "datapath/udp/udp_endpoint.h"
#include "datapath/udp/udp_receiver.h"
#include "datapath/udp/udp_sender.h"

namespace verbena::datapath {
namespace {

void watch(int epoll_fd, int fd, uint64_t data) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = data;
  ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace

UdpDatapath::UdpDatapath(uint32_t interface_index, host::SlotDirectory& directory,
                         const UdpOptions& options)
    : interface_index_(interface_index),
      directory_(directory),
      options_(options),
      counters_(std::make_unique<UdpCounters>()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      mailbox_(directory),
      receiver_(std::make_unique<UdpReceiver>(endpoints_, epoll_.get(), directory_, mailbox_,
                                              *counters_, options_)),
      sender_(std::make_unique<UdpSender>(paths_, *counters_, options_)) {
  watch(epoll_.get(), directory_.fd(), UdpReceiver::kDirectoryReady);
  watch(epoll_.get(), directory_.services_fd(), UdpReceiver::kDirectoryReady);
  watch(epoll_.get(), mailbox_.wake_fd(), UdpReceiver::kDirectoryReady);
}

Result<std::unique_ptr<WireDatapath>> UdpDatapath::open_wire(const WireOptions& options,
                                                             host::SlotDirectory& directory) {
  UdpOptions udp;
  udp.receive_buffer_bytes = options.receive_buffer_bytes;
  udp.steering = options.steering;
  return std::unique_ptr<WireDatapath>(
      std::make_unique<UdpDatapath>(options.interface_index, directory, udp));
}

UdpDatapath::~UdpDatapath() = default;

Status UdpDatapath::listen(const wire::Gid& source) {
  auto endpoint = endpoint_of(source);
  return endpoint.ok() ? Status{} : Status{endpoint.error()};
}

void UdpDatapath::report_ip_headers() {
  if (std::exchange(reports_ip_headers_, true)) return;
  for (const auto& endpoint : endpoints_) report_ip_headers(*endpoint);
}

void UdpDatapath::report_ip_headers(UdpEndpoint& endpoint) {
  report_traffic_class(endpoint);
  report_hop_limit(endpoint.receive_fd.get(), endpoint.address);
}

// The headers arrive in control messages, which recvfrom does not return. A group's socket has no
// GRO to enable.
void UdpDatapath::report_traffic_class(UdpEndpoint& endpoint) {
  if (std::exchange(endpoint.reports_traffic_class, true)) return;
  const GroSwitch::Change change = endpoint.gro.enable_permanently();
  if (!endpoint.is_group) apply(change, endpoint.receive_fd.get());
  datapath::report_traffic_class(endpoint.receive_fd.get(), endpoint.address);
}

void UdpDatapath::prepare_to_sleep() {
  for (const auto& endpoint : endpoints_) {
    apply(endpoint->gro.prepare_to_sleep(), endpoint->receive_fd.get());
  }
}

void UdpDatapath::report_unreachable_hosts(bool on) {
  if (std::exchange(reports_unreachable_hosts_, on) == on) return;
  for (const auto& endpoint : endpoints_) {
    if (!endpoint->is_group) report_unreachable_hosts(*endpoint);
  }
}

void UdpDatapath::report_unreachable_hosts(UdpEndpoint& endpoint) {
  datapath::report_unreachable_hosts(endpoint.send.fd.get(), endpoint.address,
                                     reports_unreachable_hosts_);
  if (reports_unreachable_hosts_)
    endpoint.reports_unreachable_hosts = true;  // an error may be queued after reporting ends
}

std::optional<UnreachableHost> UdpDatapath::take_unreachable_host() {
  if (!reports_unreachable_hosts_) return std::nullopt;
  for (const auto& endpoint : endpoints_) {
    if (!endpoint->reports_unreachable_hosts) continue;
    if (auto host = datapath::take_unreachable_host(endpoint->send.fd.get())) return host;
  }
  return std::nullopt;
}

Result<UdpEndpoint*> UdpDatapath::endpoint_of(const wire::Gid& source) {
  const host::LocalAddress address = host::local_address(source, interface_index_);
  for (const auto& endpoint : endpoints_) {
    if (endpoint->address == address) return endpoint.get();
  }
  if (!epoll_.valid()) return Error{EMFILE, "cannot open an epoll descriptor"};
  auto endpoint = std::make_unique<UdpEndpoint>();
  endpoint->address = address;
  auto send = open_send_socket(address, options_, directory_.slot());
  if (!send.ok()) return send.error();
  endpoint->send = std::move(send.value());
  if (reports_unreachable_hosts_) report_unreachable_hosts(*endpoint);
  // Other lanes may forward packets as soon as the receiving socket is bound.
  mailbox_.add_address(address);
  auto receive = open_receive_socket(address, options_);
  if (!receive.ok()) return receive.error();
  endpoint->receive_fd = std::move(receive.value());
  if (reports_ip_headers_) report_ip_headers(*endpoint);
  endpoint->hardware_segments = segments_in_hardware(interface_index_);
  endpoint->steering =
      std::make_unique<host::Steering>(address, endpoint->receive_fd.get(), endpoint->send.fd.get(),
                                       directory_, counters_->steering_updates, options_.steering);
  endpoint->steering->start_round(read_clock(options_));
  watch(epoll_.get(), endpoint->receive_fd.get(), endpoints_.size());
  endpoints_.push_back(std::move(endpoint));
  return endpoints_.back().get();
}

bool UdpDatapath::is_ready() const {
  return std::ranges::all_of(endpoints_, [](const auto& endpoint) {
    return endpoint->steering == nullptr || endpoint->steering->is_ready();
  });
}

UdpEndpoint* UdpDatapath::group_endpoint(const wire::Gid& group) {
  for (const auto& endpoint : endpoints_) {
    if (endpoint->is_group && endpoint->receive_fd.valid() && endpoint->address.gid == group) {
      return endpoint.get();
    }
  }
  return nullptr;
}

Status UdpDatapath::join(const wire::Gid& group) {
  if (group_endpoint(group) != nullptr) return {};
  if (!epoll_.valid()) return Error{EMFILE, "cannot open an epoll descriptor"};
  const host::LocalAddress address = host::local_address(group, interface_index_);
  auto fd = open_group_socket(address, interface_index_, options_);
  if (!fd.ok()) return fd.error();
  // epoll identifies endpoints by their index, so the index of a closed one is reused.
  size_t number = 0;
  while (number < endpoints_.size() && endpoints_[number]->receive_fd.valid()) ++number;
  if (number == endpoints_.size()) endpoints_.push_back(std::make_unique<UdpEndpoint>());
  UdpEndpoint& endpoint = *endpoints_[number];
  endpoint.address = address;
  endpoint.is_group = true;
  endpoint.reports_traffic_class = false;
  (void)endpoint.gro.enable_permanently();
  endpoint.receive_fd = std::move(fd.value());
  if (reports_ip_headers_) report_ip_headers(endpoint);
  watch(epoll_.get(), endpoint.receive_fd.get(), number);
  return {};
}

void UdpDatapath::leave(const wire::Gid& group) {
  UdpEndpoint* const endpoint = group_endpoint(group);
  if (endpoint == nullptr) return;
  // Closing the socket does not remove it from the epoll set if a forked child has a copy of it.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, endpoint->receive_fd.get(), nullptr);
  endpoint->receive_fd.reset();
  while (!endpoints_.empty() && !endpoints_.back()->receive_fd.valid()) endpoints_.pop_back();
}

Result<wire::PathId> UdpDatapath::open_path(const wire::Route& route) {
  if (route.source.is_ipv4() != route.destination.is_ipv4()) {
    return Error{EINVAL, "the peer's GID is of the other IP version than the local one"};
  }
  auto endpoint = endpoint_of(route.source);
  if (!endpoint.ok()) return endpoint.error();
  auto path = std::make_unique<UdpPath>();
  path->endpoint = endpoint.value();
  path->destination = host::local_address(route.destination, interface_index_);
  path->interface_index = interface_index_;
  const bool to_group = route.destination.is_multicast();
  if (to_group && !send_groups_through(path->endpoint->send.fd.get(), path->endpoint->address,
                                       interface_index_)) {
    return Error{errno, "the interface does not support multicast"};
  }
  auto largest = largest_datagram(path->endpoint->address, path->destination, interface_index_);
  if (!largest.ok()) return largest.error();
  path->max_datagram_bytes = largest.value();
  path->to = host::SocketAddress::of(path->destination, wire::kRoceUdpPort);
  path->icrc = wire::IcrcPrefixes(
      {route.source, route.destination, path->endpoint->send.port, wire::kRoceUdpPort});
  path->traffic_class = route.traffic_class;
  if (route.hop_limit != 0) path->hop_limit = route.hop_limit;  // verbs callers leave 0 for "any"
  if (path->endpoint->hop_limit == 0) {
    path->endpoint->hop_limit = path->hop_limit;
    set_hop_limit(path->endpoint->send.fd.get(), path->endpoint->address, path->hop_limit);
  }
  // Packets to this host use the loopback interface, whatever the address. Nothing marks them
  // there.
  const bool is_local = path->is_local = host::was_local_just_now(path->destination);
  if (!is_local && !to_group) report_traffic_class(*path->endpoint);
  // The kernel steers a batch by its first packet, so packets for all processes of a host are never
  // in a batch.
  const bool never = to_group || route.peer == wire::kManagementQpn;
  path->may_gather = !never && route.peer != wire::Qpn();
  switch (never ? Segmentation::Never : options_.segmentation) {
    case Segmentation::Always:
      path->may_segment = true;
      break;
    case Segmentation::Never:
      path->may_segment = false;
      break;
    case Segmentation::Auto:
      path->may_segment = !path->endpoint->hardware_segments || is_local;
      break;
  }
  if (free_paths_.empty()) {
    reserve_ahead(free_paths_, paths_.size() + 1);  // close_path() does not allocate
    paths_.push_back(std::move(path));
    return static_cast<wire::PathId>(paths_.size() - 1);
  }
  const uint32_t id = free_paths_.back();
  free_paths_.pop_back();
  paths_[id] = std::move(path);
  return static_cast<wire::PathId>(id);
}

void UdpDatapath::close_path(wire::PathId path) {
  const auto id = static_cast<uint32_t>(path);
  if (id >= paths_.size() || !paths_[id]) return;
  sender_->flush();  // it may contain packets for this path
  paths_[id].reset();
  free_paths_.push_back(id);
}

std::span<const wire::RxPacket> UdpDatapath::receive() { return receiver_->receive(); }
bool UdpDatapath::pending() const { return receiver_->pending(); }
wire::PacketSink& UdpDatapath::sink() { return *sender_; }
void UdpDatapath::flush() { sender_->flush(); }
int UdpDatapath::wait_fd() const { return epoll_.get(); }

namespace {

// Forwarded packets have space for an ICRC, which no process reads.
std::vector<std::byte> with_icrc(std::span<const std::byte> packet) {
  std::vector<std::byte> bytes(packet.size() + wire::kIcrcBytes);
  std::ranges::copy(packet, bytes.begin());
  return bytes;
}

}  // namespace

host::Forwarded UdpDatapath::forward(uint8_t slot, std::span<const std::byte> packet,
                                     const wire::RxMeta& meta) {
  const auto bytes = with_icrc(packet);
  const auto outcome =
      directory_.forward(slot, host::local_address(meta.destination, interface_index_), meta, bytes,
                         static_cast<uint32_t>(bytes.size()));
  return count_forwarded(outcome, meta);
}

host::Forwarded UdpDatapath::forward(std::span<const host::ServiceName> services,
                                     std::span<const std::byte> packet, const wire::RxMeta& meta) {
  const auto bytes = with_icrc(packet);
  const host::LocalAddress arrived_at = host::local_address(meta.destination, interface_index_);
  for (const host::ServiceName& service : services) {
    const host::Forwarded outcome = directory_.forward(service, arrived_at, meta, bytes);
    if (outcome != host::Forwarded::NoReceiver) return count_forwarded(outcome, meta);
  }
  return host::Forwarded::NoReceiver;
}

void UdpDatapath::forward_to_everyone(std::span<const std::byte> packet, const wire::RxMeta& meta) {
  const host::Steering* const steering = steering_of(meta.destination);
  if (steering == nullptr) return;
  if (!broadcasts_.take(read_clock(options_))) {
    ++counters_->broadcasts_limited;
    return;
  }
  const auto bytes = with_icrc(packet);
  for (const uint8_t slot : steering->others()) {
    const host::Forwarded outcome =
        directory_.forward(slot, host::local_address(meta.destination, interface_index_), meta,
                           bytes, static_cast<uint32_t>(bytes.size()), host::Wait::No);
    if (outcome == host::Forwarded::Yes) ++counters_->misrouted_forwarded;
    if (outcome == host::Forwarded::Dropped) ++counters_->misrouted_dropped;
  }
}

host::Steering* UdpDatapath::steering_of(const wire::Gid& address) {
  for (const auto& endpoint : endpoints_) {
    if (!endpoint->is_group && endpoint->address.gid == address) return endpoint->steering.get();
  }
  return nullptr;
}

host::Forwarded UdpDatapath::count_forwarded(host::Forwarded outcome, const wire::RxMeta& meta) {
  if (outcome == host::Forwarded::Dropped) ++counters_->misrouted_dropped;
  if (outcome != host::Forwarded::Yes) return outcome;
  ++counters_->misrouted_forwarded;
  if (host::Steering* steering = steering_of(meta.destination))
    steering->on_misrouted(read_clock(options_));
  return outcome;
}

void UdpDatapath::update_services() {
  for (const auto& endpoint : endpoints_) {
    if (endpoint->steering) endpoint->steering->update_services(read_clock(options_));
  }
}

Instant UdpDatapath::deadline() const {
  Instant earliest = kNever;
  for (const auto& endpoint : endpoints_) {
    if (endpoint->steering) earliest = std::min(earliest, endpoint->steering->deadline());
  }
  return earliest;
}

void UdpDatapath::poll_directory() { receiver_->poll_directory(); }
std::optional<std::string> UdpDatapath::take_warning() { return sender_->take_warning(); }

void UdpDatapath::append_counters(std::vector<Counter>& to) const {
  const UdpCounters& c = *counters_;
  uint64_t drops = 0;
  for (const auto& endpoint : endpoints_) drops += kernel_drops(endpoint->receive_fd.get());
#define X(name, meaning) to.push_back({"udp_" #name, c.name, meaning});
  VERBENA_UDP_COUNTERS(X)
#undef X
  to.push_back({"udp_misrouted_waits", directory_.waits(),
                "times forwarding waited because the other lane was too slow"});
  to.push_back({"udp_kernel_rx_drops", drops,
                "packets that the kernel dropped because the receive buffer was full"});
}

}  // namespace verbena::datapath
