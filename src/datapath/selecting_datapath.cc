// Chooses between the wire and the medium for each packet, and for the next poll.
#include "datapath/selecting_datapath.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/exhaustion.h"
#include "host/local_address.h"

namespace verbena::datapath {
namespace {

// A poll of the sockets is a system call and takes many times as long as a poll of the rings. While
// the wire is idle, the interval doubles up to this number of polls of the medium. Elapsed time
// counts as polls. A thread that the sockets woke polls them at once.
constexpr uint32_t kWireEvery = 512;
constexpr int64_t kPollNs = 128;
// The same limit per turn as for UDP.
constexpr size_t kBytesPerTurn = size_t{512} * 1024;
// The fixed cost of a direct copy, in bytes that could be copied in that time.
constexpr size_t kCopyCost = 4096;
constexpr size_t kShortAckBytes = 8;

}  // namespace

SelectingDatapath::SelectingDatapath(std::unique_ptr<Datapath> wire,
                                     std::unique_ptr<LocalMedium> medium, uint32_t interface_index)
    : PacketSink(this),
      wire_(std::move(wire)),
      wire_sink_(wire_->sink()),
      medium_(std::move(medium)),
      interface_index_(interface_index),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  const auto watch = [this](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  };
  watch(wire_->wait_fd());
  watch(medium_->wait_fd());
}

bool SelectingDatapath::reach(const wire::Gid& destination, wire::Qpn peer, Instant now) {
  if (destination.is_multicast() || peer.slot() == 0) return true;
  if (!host::was_local_just_now(host::local_address(destination, interface_index_))) return true;
  // If memory is exhausted, packets go over the wire.
  bool reached = true;
  (void)try_allocating([&] { reached = medium_->reach(peer.slot(), now); });
  return reached;
}

Result<wire::PathId> SelectingDatapath::open_path(const wire::Route& route) {
  auto opened = wire_->open_path(route);
  if (!opened.ok()) return opened;
  const auto id = static_cast<size_t>(opened.value());
  if (id >= paths_.size() && !try_allocating([&] { paths_.resize(id + 1); })) {
    wire_->close_path(opened.value());
    return Error{ENOMEM, "out of memory"};
  }
  Path& path = paths_[id] = Path{};
  if (route.destination.is_multicast()) return opened;
  if (!host::was_local_just_now(host::local_address(route.destination, interface_index_)))
    return opened;
  path.slot = route.peer.slot();
  path.addresses = {route.source, route.destination, route.traffic_class, route.hop_limit};
  return opened;
}

void SelectingDatapath::close_path(wire::PathId path) {
  const auto id = static_cast<size_t>(path);
  if (id < paths_.size()) paths_[id] = Path{};
  wire_->close_path(path);
}

const SelectingDatapath::Path* SelectingDatapath::find(wire::PathId path) const {
  const auto id = static_cast<size_t>(path);
  return id < paths_.size() ? &paths_[id] : nullptr;
}

LocalLink* SelectingDatapath::link_of(wire::PathId path) const {
  const Path* const p = find(path);
  return p != nullptr ? medium_->link_to(p->slot) : nullptr;
}

uint32_t SelectingDatapath::packet_bytes(wire::PathId path) {
  const LocalLink* const link = link_address_of(path).link;
  return link != nullptr && !link->wire_packets_only() ? wire::kMaxPayloadBytes : 0;
}

[[gnu::always_inline]] inline SelectingDatapath::LinkAddress SelectingDatapath::link_address_of(
    wire::PathId id) {
  const auto index = static_cast<size_t>(id);
  if (index >= paths_.size()) [[unlikely]]
    return {};
  Path& path = paths_[index];
  LocalLink* const link = medium_->link_to(path.slot);
  if (link == nullptr) return {};
  if (path.numbered_for != link->id() && !assign_number(path, *link)) [[unlikely]]
    return {};
  return {link, path.number};
}

// Assigns a number to the path's addresses on that link. False: there are too many.
bool SelectingDatapath::assign_number(Path& path, LocalLink& link) {
  const auto number = link.number_of(path.addresses);
  if (!number) return false;
  path.number = *number;
  path.numbered_for = link.id();
  return true;
}

// The wire and the medium alternate, however busy one of them is. If the first has no packets, the
// other is polled.
std::span<const wire::RxPacket> SelectingDatapath::receive() {
  const bool wire_due = ++polls_ >= wire_every_;
  const bool medium_first = !wire_due || medium_first_;
  if (medium_first) {
    const auto packets = medium_->receive();
    if (!packets.empty() || !wire_due) {
      medium_first_ = false;
      return packets;
    }
  }
  const auto packets = wire_->receive();
  polls_ = 0;
  wire_every_ = packets.empty() && medium_->has_links() ? std::min(2 * wire_every_, kWireEvery) : 1;
  medium_first_ = true;
  return packets.empty() && !medium_first ? medium_->receive() : packets;
}

bool SelectingDatapath::arm() {
  if (medium_->arm()) return true;
  medium_->disarm();
  return false;
}

void SelectingDatapath::disarm() {
  polls_ = wire_every_;
  medium_->disarm();
}

void SelectingDatapath::pass_on() {
  polls_ += static_cast<uint32_t>(std::min<int64_t>(passed_.ns / kPollNs, kWireEvery));
  medium_->pass(passed_);
  passed_ = {};
}

size_t SelectingDatapath::room() const {
  if (pushed_ >= kBytesPerTurn) return 0;
  const size_t in_memory = (kBytesPerTurn - pushed_ - 1) / wire::kMaxPayloadBytes + 1;
  return to_wire_ ? std::min(in_memory, wire_sink_.room()) : in_memory;
}

// The limit for large packets does not apply on the wire.
size_t SelectingDatapath::room_on(wire::PathId path) const {
  if (pushed_ >= kBytesPerTurn || link_of(path) != nullptr) return room();
  return wire_sink_.room();
}

// A path whose link has ended takes no packets until the engine has reverted it to the path MTU:
// the peer would segment the response to a READ in another way.
bool SelectingDatapath::is_full(wire::PathId id) const {
  const Path* const path = find(id);
  if (path == nullptr) return false;
  if (LocalLink* const link = medium_->link_to(path->slot)) return link->full();
  return medium_->is_ending(path->slot);
}

bool SelectingDatapath::is_asleep(wire::PathId path) const {
  const LocalLink* const link = link_of(path);
  return link != nullptr && link->peer_sleeps();
}

// A direct copy counts against the limit per turn, as packets do.
bool SelectingDatapath::access(const wire::OneSided& request) {
  pushed_ += request.bytes + kCopyCost;
  const Path* const path = find(request.path);
  if (path == nullptr) return false;
  LocalLink* const link = medium_->link_to(path->slot);
  return link != nullptr && medium_->access(*link, request, path->addresses);
}

bool SelectingDatapath::retract(const wire::Unread& requests) {
  LocalLink* const link = link_of(requests.path);
  const Path* const path = find(requests.path);
  if (link == nullptr || path->numbered_for != link->id()) return false;
  ++pushed_;  // so that flush() publishes the remaining records
  return link->retract(requests, path->number);
}

void SelectingDatapath::push(const wire::TxPacket& packet) {
  const LinkAddress to = link_address_of(packet.path);
  if (to.link == nullptr) return push_to_wire(packet);
  to.link->push(packet, to.number);
  pushed_ += packet.header_bytes + packet.payload_bytes;
}

void SelectingDatapath::push_run(const wire::TxRun& run) {
  if (link_address_of(run.first.path).link != nullptr) return PacketSink::push_run(run);
  to_wire_ = true;
  wire_sink_.push_run(run);
}

bool SelectingDatapath::send_short_ack(wire::PathId path, const wire::Ack& ack) {
  const LinkAddress to = link_address_of(path);
  if (to.link == nullptr || to.link->wire_packets_only()) return false;
  to.link->send_short_ack(ack, to.number);
  pushed_ += kShortAckBytes;
  return true;
}

void SelectingDatapath::push_to_wire(const wire::TxPacket& packet) {
  to_wire_ = true;
  wire_sink_.push(packet);
}

void SelectingDatapath::flush() {
  if (pushed_ != 0) medium_->flush();
  if (to_wire_) wire_->flush();
  pushed_ = 0;
  to_wire_ = false;
}

void SelectingDatapath::append_counters(std::vector<Counter>& to) const {
  wire_->append_counters(to);
  medium_->append_counters(to);
}

}  // namespace verbena::datapath
