// DatagramSocket: peer discovery. The peer's address determines our endpoint, the peer's UDP header
// its queue pair, and the connection manager the path.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "os/plain_socket.h"
#include "rsocket/clock.h"
#include "rsocket/datagram_socket.h"

namespace verbena::rsocket {

namespace {

// Any host can send us datagrams, so these limits bound our memory. An evicted peer is discovered
// again. A peer whose path is not being resolved uses UDP; its next datagram starts the resolution.
// Each resolution needs an ID and a port.
constexpr size_t kMaxPeers = 4096;
constexpr size_t kMaxResolving = 16;
// A UD queue pair does not report that its peer has ended. If a peer has been silent for this long,
// the next datagram to it goes through UDP, which makes it reply with its queue pair number. If
// that is lost, another one follows soon.
constexpr Duration kSilenceLimit = seconds(3);
constexpr Duration kReplyTimeout = milliseconds(100);
constexpr size_t kUdpBuffer = 65536;
constexpr size_t kMaxUdpPayloadV4 = 65507, kMaxUdpPayloadV6 = 65527;
constexpr int kResolveMs = 2000;
constexpr int kReadsPerTurn = 64;  // so that other sockets are served too

}  // namespace

Result<DatagramSocket::Peer*> DatagramSocket::peer_for(const SocketAddress& address) {
  if (const auto it = peers_.find(address); it != peers_.end()) return &it->second;
  auto local = local_address_for(address);
  if (!local.ok()) return local.error();
  auto endpoint = endpoint_for(local.value());
  if (!endpoint.ok()) return endpoint.error();
  evict_peer_if_full();
  Peer& peer = peers_[address];
  peer.endpoint = endpoint.value();
  return &peer;
}

bool DatagramSocket::through_queue_pair(const Peer& peer, size_t size) const {
  if (!peer.path || peer.endpoint->broken() || !peer.endpoint->fits(size)) return false;
  const Instant time = now();
  return time - peer.last_received < kSilenceLimit || time - peer.last_request < kReplyTimeout;
}

// Returns the source address that the kernel would choose.
Result<SocketAddress> DatagramSocket::local_address_for(const SocketAddress& peer) {
  auto own = name();
  if (!own.ok()) return own.error();
  if (own.value().port() == 0) {
    // Peers reply to this port, so it must be bound before the first datagram is sent.
    const SocketAddress any = SocketAddress::any(family_);
    if (::bind(udp_, any.get(), any.size()) != 0) return Error{errno};
    own = name();
    if (!own.ok()) return own.error();
  }
  if (!own.value().is_any()) return own.value().unmapped();
  const os::UniqueFd probe = os::plain_socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC);
  if (!probe.valid()) return Error{errno};
  if (::connect(probe.get(), peer.get(), peer.size()) != 0) return Error{errno};
  SocketAddress local;
  socklen_t length = sizeof(sockaddr_in6);
  if (::getsockname(probe.get(), local.get(), &length) != 0) return Error{errno};
  local.set_port(own.value().port());
  return local;
}

Result<DatagramEndpoint*> DatagramSocket::endpoint_for(const SocketAddress& local) {
  for (const auto& endpoint : endpoints_) {
    if (endpoint->local() == local) return endpoint.get();
  }
  auto made = DatagramEndpoint::create(channel_, local, sizes_);
  if (!made.ok()) return made.error();
  endpoints_.push_back(std::move(made.value()));
  wake_waiters();  // sleeping threads must add the new completion channel
  return endpoints_.back().get();
}

void DatagramSocket::evict_peer_if_full() {
  if (peers_.size() < kMaxPeers) return;
  auto victim = peers_.begin();
  if (connected_ && victim->first == *connected_) ++victim;
  release(victim->second);
  peers_.erase(victim);
}

void DatagramSocket::release(Peer& peer) {
  if (peer.path) ibv_destroy_ah(peer.path);
  peer.path = nullptr;
  if (!peer.resolving) return;
  resolving_.erase(peer.resolving);
  rdma_destroy_id(std::exchange(peer.resolving, nullptr));
}

Status DatagramSocket::send_through_udp(const Peer& peer, const SocketAddress& to, UdpHeader::Op op,
                                        Buffers* from, int flags) {
  const UdpHeader header{op, peer.endpoint->qpn(), peer.endpoint->local()};
  std::array<std::byte, UdpHeader::kMaxSize> header_bytes;
  header.store(header_bytes.data());
  const size_t max_payload = to.family() == AF_INET ? kMaxUdpPayloadV4 : kMaxUdpPayloadV6;
  if (from && from->left() > max_payload - header.size()) return Error{EMSGSIZE};
  std::vector<std::byte> payload(from ? from->left() : 0);
  if (from) from->copy_out(payload.data(), payload.size());
  std::array<iovec, 2> areas{
      {{header_bytes.data(), header.size()}, {payload.data(), payload.size()}}};
  SocketAddress name = to.seen_by(family_);
  msghdr message{};
  message.msg_name = name.get();
  message.msg_namelen = name.size();
  message.msg_iov = areas.data();
  message.msg_iovlen = areas.size();
  // The first call may report an ICMP error of an earlier datagram; this one has not failed.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (::sendmsg(udp_, &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
    if (errno != ECONNREFUSED || connected_) break;
  }
  return Error{errno};
}

// --- service thread ---------------------------------------------------------------------------

void DatagramSocket::on_ready(int descriptor) {
  if (descriptor != udp_) {
    if (has_channel()) take_events();  // ignores a late event for an earlier socket of this number
    return;
  }
  if (udp_buffer_.empty()) udp_buffer_.resize(kUdpBuffer);
  for (int i = 0; i < kReadsPerTurn; ++i) {
    SocketAddress source;
    socklen_t length = sizeof(sockaddr_in6);
    const ssize_t size = ::recvfrom(udp_, udp_buffer_.data(), udp_buffer_.size(), MSG_DONTWAIT,
                                    source.get(), &length);
    const int error = size < 0 ? errno : 0;
    if (error == EAGAIN || error == EBADF) return;
    const std::lock_guard guard(lock_);
    if (closed_) return;
    if (error) {  // an ICMP error of an earlier datagram
      if (!connected_) continue;
      error_ = error;
      wake_waiters();
      continue;
    }
    on_udp({udp_buffer_.data(), static_cast<size_t>(size)}, source.unmapped());
  }
}

void DatagramSocket::on_udp(std::span<const std::byte> datagram, const SocketAddress& source) {
  const auto header = UdpHeader::load(datagram, source.family());
  if (!header) return;
  // Replies are accepted only from peers that we have sent to.
  if (header->op == UdpHeader::Op::kReply && !peers_.contains(source)) return;
  auto found = peer_for(source);
  if (!found.ok()) return;
  Peer& peer = *found.value();
  peer.last_received = now();
  if (peer.path && peer.qpn != header->qpn) {  // the peer has restarted
    ibv_destroy_ah(std::exchange(peer.path, nullptr));
  }
  if (header->op == UdpHeader::Op::kData) {
    (void)send_through_udp(peer, source, UdpHeader::Op::kReply, nullptr, 0);
    const std::span<const std::byte> payload = datagram.subspan(header->size());
    if (wanted(source) && udp_bytes_ + payload.size() <= sizes_.receive_bytes &&
        inbox_.size() < size_t{2} * sizes_.receive_slots) {
      inbox_.push_back({source, nullptr, {}, {payload.begin(), payload.end()}});
      udp_bytes_ += payload.size();
      wake_waiters();
    }
  }
  if (!peer.path) find_path(peer, source, header->qpn);
}

void DatagramSocket::find_path(Peer& peer, const SocketAddress& address, uint32_t qpn) {
  peer.resolving_qpn = qpn;
  if (peer.resolving || resolving_.size() >= kMaxResolving) return;
  if (rdma_create_id(channel_, &peer.resolving, nullptr, RDMA_PS_UDP) != 0) {
    peer.resolving = nullptr;
    return;
  }
  SocketAddress local = peer.endpoint->local();
  local.set_port(0);
  SocketAddress remote = address;
  if (rdma_resolve_addr(peer.resolving, local.get(), remote.get(), kResolveMs) != 0) {
    rdma_destroy_id(std::exchange(peer.resolving, nullptr));
    return;
  }
  resolving_[peer.resolving] = address;
}

bool DatagramSocket::has_channel() {
  const std::lock_guard guard(lock_);
  return started_;
}

void DatagramSocket::take_events() {
  rdma_cm_event* event;
  while (rdma_get_cm_event(channel_, &event) == 0) {
    const rdma_cm_event_type type = event->event;
    rdma_cm_id* id = event->id;
    rdma_ack_cm_event(event);
    const std::lock_guard guard(lock_);
    if (!closed_) on_event(type, id);
  }
}

void DatagramSocket::on_event(rdma_cm_event_type type, rdma_cm_id* id) {
  const auto entry = resolving_.find(id);
  if (entry == resolving_.end()) return;
  if (type == RDMA_CM_EVENT_ADDR_RESOLVED && rdma_resolve_route(id, kResolveMs) == 0) return;
  Peer& peer = peers_.at(entry->second);
  if (type == RDMA_CM_EVENT_ROUTE_RESOLVED) {
    if (ibv_ah* path = make_address_handle(peer.endpoint->id()->pd, id)) {
      if (ibv_ah* old = std::exchange(peer.path, path)) ibv_destroy_ah(old);
      peer.qpn = peer.resolving_qpn;
    }
  }
  // The ID is no longer needed. If the resolution failed, the next datagram through UDP repeats it.
  resolving_.erase(entry);
  rdma_destroy_id(std::exchange(peer.resolving, nullptr));
}

}  // namespace verbena::rsocket
