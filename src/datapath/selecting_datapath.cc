// Choosing the medium for each packet, and whose turn it is to be looked at.
#include "datapath/selecting_datapath.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/exhaustion.h"
#include "host/local_address.h"

namespace verbena::datapath {
namespace {

// A look at the sockets is a system call, many times as long as one at the rings. While nothing
// comes over UDP it is made more and more seldom, at last once in so many looks at the rings; time
// that passes counts as looks, too. A thread that the sockets woke looks at once.
constexpr uint32_t kUdpEvery = 512;
constexpr int64_t kLookNs = 128;
// As much as UDP takes in a turn.
constexpr size_t kBytesPerTurn = size_t{512} * 1024;
// What a copy into a peer's memory takes by itself, in bytes that could be copied meanwhile.
constexpr size_t kCopyCost = 4096;

}  // namespace

SelectingDatapath::SelectingDatapath(std::unique_ptr<UdpDatapath> udp,
                                     std::unique_ptr<ShmDatapath> shm, uint32_t interface_index)
    : PacketSink(this),
      udp_(std::move(udp)),
      shm_(std::move(shm)),
      interface_index_(interface_index),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  for (const int fd : {udp_->wait_fd(), shm_->wait_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
}

bool SelectingDatapath::reach(const wire::Gid& destination, wire::Qpn peer, Instant now) {
  if (destination.is_multicast() || peer.slot() == 0) return true;
  if (!host::is_local(host::local_address(destination, interface_index_))) return true;
  bool reached = true;  // without memory packets go over UDP
  (void)try_allocating([&] { reached = shm_->reach(peer.slot(), now); });
  return reached;
}

Result<wire::PathId> SelectingDatapath::open_path(const wire::Route& route) {
  auto opened = udp_->open_path(route);
  if (!opened.ok()) return opened;
  const auto id = static_cast<size_t>(opened.value());
  if (id >= paths_.size() && !try_allocating([&] { paths_.resize(id + 1); })) {
    udp_->close_path(opened.value());
    return Error{ENOMEM, "out of memory"};
  }
  Path& path = paths_[id] = Path{};
  if (route.destination.is_multicast()) return opened;
  if (!host::is_local(host::local_address(route.destination, interface_index_))) return opened;
  path.slot = route.peer.slot();
  path.addresses = {route.source, route.destination, route.traffic_class, route.hop_limit};
  return opened;
}

void SelectingDatapath::close_path(wire::PathId path) {
  const auto id = static_cast<size_t>(path);
  if (id < paths_.size()) paths_[id] = Path{};
  udp_->close_path(path);
}

const SelectingDatapath::Path* SelectingDatapath::find(wire::PathId path) const {
  const auto id = static_cast<size_t>(path);
  return id < paths_.size() ? &paths_[id] : nullptr;
}

Link* SelectingDatapath::link_of(wire::PathId path) const {
  const Path* const p = find(path);
  return p != nullptr ? shm_->link_to(p->slot) : nullptr;
}

uint32_t SelectingDatapath::packet_bytes(wire::PathId path) {
  const Link* const link = carrier_of(path).link;
  return link != nullptr && !link->wire_packets_only() ? wire::kMaxPayloadBytes : 0;
}

[[gnu::always_inline]] inline SelectingDatapath::Carrier SelectingDatapath::carrier_of(
    wire::PathId id) {
  const auto index = static_cast<size_t>(id);
  if (index >= paths_.size()) [[unlikely]]
    return {};
  Path& path = paths_[index];
  Link* const link = shm_->link_to(path.slot);
  if (link == nullptr) return {};
  if (path.numbered_for != link->id() && !number(path, *link)) [[unlikely]]
    return {};
  return {link, path.number};
}

// The path's addresses have a number on that link from now on. False: there are too many.
bool SelectingDatapath::number(Path& path, Link& link) {
  const auto number = link.number_of(path.addresses);
  if (!number) return false;
  path.number = *number;
  path.numbered_for = link.id();
  return true;
}

// Both get their turn, however busy the other is; and where the one has nothing, the other is
// asked.
std::span<const wire::RxPacket> SelectingDatapath::receive() {
  const bool udp_due = ++looks_ >= udp_every_;
  const bool memory_first = !udp_due || memory_first_;
  if (memory_first) {
    const auto packets = shm_->receive();
    if (!packets.empty() || !udp_due) {
      memory_first_ = false;
      return packets;
    }
  }
  const auto packets = udp_->receive();
  looks_ = 0;
  udp_every_ = packets.empty() && shm_->has_links() ? std::min(2 * udp_every_, kUdpEvery) : 1;
  memory_first_ = true;
  return packets.empty() && !memory_first ? shm_->receive() : packets;
}

void SelectingDatapath::disarm() {
  looks_ = udp_every_;
  shm_->disarm();
}

void SelectingDatapath::pass(Duration time) {
  looks_ += static_cast<uint32_t>(std::min<int64_t>(time.ns / kLookNs, kUdpEvery));
  shm_->pass(time);
}

size_t SelectingDatapath::room() const {
  if (pushed_ >= kBytesPerTurn) return 0;
  const size_t in_memory = (kBytesPerTurn - pushed_ - 1) / wire::kMaxPayloadBytes + 1;
  return to_udp_ ? std::min(in_memory, udp_->sink().room()) : in_memory;
}

bool SelectingDatapath::is_full(wire::PathId path) const {
  Link* const link = link_of(path);
  return link != nullptr && link->full();
}

bool SelectingDatapath::is_asleep(wire::PathId path) const {
  const Link* const link = link_of(path);
  return link != nullptr && link->peer_sleeps();
}

// It counts against the turn, as packets do.
bool SelectingDatapath::access(const wire::OneSided& request) {
  Link* const link = link_of(request.path);
  pushed_ += request.bytes + kCopyCost;
  return link != nullptr &&
         shm_->access(*link, request, paths_[static_cast<size_t>(request.path)].addresses);
}

bool SelectingDatapath::retract(const wire::Unread& requests) {
  Link* const link = link_of(requests.path);
  const Path* const path = find(requests.path);
  if (link == nullptr || path->numbered_for != link->id()) return false;
  ++pushed_;  // the rest is shown anew
  return link->retract(requests, path->number);
}

void SelectingDatapath::push(const wire::TxPacket& packet) {
  const Carrier carrier = carrier_of(packet.path);
  if (carrier.link == nullptr) return push_to_udp(packet);
  carrier.link->push(packet, carrier.number);
  pushed_ += packet.header_bytes + packet.payload_bytes;
}

bool SelectingDatapath::send_short_ack(wire::PathId path, const wire::Acknowledgement& ack) {
  const Carrier carrier = carrier_of(path);
  if (carrier.link == nullptr || carrier.link->wire_packets_only()) return false;
  carrier.link->send_short_ack(ack, carrier.number);
  pushed_ += kWordBytes;
  return true;
}

void SelectingDatapath::push_to_udp(const wire::TxPacket& packet) {
  to_udp_ = true;
  udp_->sink().push(packet);
}

void SelectingDatapath::flush() {
  if (pushed_ != 0) shm_->flush();
  if (to_udp_) udp_->flush();
  pushed_ = 0;
  to_udp_ = false;
}

void SelectingDatapath::append_counters(std::vector<Counter>& to) const {
  udp_->append_counters(to);
  shm_->append_counters(to);
}

}  // namespace verbena::datapath
