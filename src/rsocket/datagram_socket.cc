// DatagramSocket: the calls. Peer discovery is in datagram_peers.cc.
#include "rsocket/datagram_socket.h"

#include <fcntl.h>
#include <rdma/rsocket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "os/plain_socket.h"
#include "rsocket/clock.h"
#include "rsocket/option_value.h"
#include "rsocket/service_thread.h"
#include "rsocket/socket_table.h"

namespace verbena::rsocket {

namespace {
// Time for unsent datagrams of the queue pair when the socket is closed.
constexpr Duration kFlushLimit = seconds(1);
}  // namespace

Result<int> DatagramSocket::create(int family, int file_flags, int descriptor_flags) {
  const int udp = os::plain_socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK).release();
  if (udp < 0) return Error{errno};
  std::unique_ptr<DatagramSocket> socket(new DatagramSocket(family, udp));
  socket->set_file_flags(file_flags);
  socket->set_descriptor_flags(descriptor_flags);
  if (const Status added = SocketTable::instance().add(std::move(socket)); !added.ok()) {
    return added.error();
  }
  return udp;
}

DatagramSocket::~DatagramSocket() {
  for (auto& [address, peer] : peers_) release(peer);
  endpoints_.clear();
  if (channel_) rdma_destroy_event_channel(channel_);
  ::close(udp_);
}

// Starts the discovery of peers in both directions.
Status DatagramSocket::start() {
  if (closed_) return Error{EBADF};
  if (started_) return {};
  if (!channel_) channel_ = rdma_create_event_channel();
  if (!channel_) return Error{errno};
  const int flags = ::fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || ::fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) return Error{errno};
  ServiceThread& service_thread = ServiceThread::instance();
  if (const Status watching = service_thread.watch(channel_->fd, number()); !watching.ok()) {
    return watching;
  }
  if (const Status watching = service_thread.watch(udp_, number()); !watching.ok()) {
    service_thread.unwatch(channel_->fd, number());
    return watching;
  }
  started_ = true;
  return {};
}

Status DatagramSocket::bind(const SocketAddress& address) {
  const std::lock_guard guard(lock_);
  if (::bind(udp_, address.get(), address.size()) != 0) return Error{errno};
  return start();
}

Status DatagramSocket::connect(const SocketAddress& address) {
  const std::lock_guard guard(lock_);
  if (const Status started = start(); !started.ok()) return started;
  const SocketAddress to = address.seen_by(family_);
  if (::connect(udp_, to.get(), to.size()) != 0) return Error{errno};
  auto peer = peer_for(address.unmapped());
  if (!peer.ok()) return peer.error();
  connected_ = address.unmapped();
  return {};
}

Status DatagramSocket::disconnect() {
  const std::lock_guard guard(lock_);
  auto before = name();
  if (!before.ok()) return before.error();
  sockaddr unspecified{};
  unspecified.sa_family = AF_UNSPEC;
  if (::connect(udp_, &unspecified, sizeof unspecified) != 0) return Error{errno};
  connected_.reset();
  // The kernel releases a port that it chose itself. Peers know us by that port, so bind it again.
  auto after = name();
  if (!after.ok() || after.value().port() == before.value().port()) return {};
  after.value().set_port(before.value().port());
  if (::bind(udp_, after.value().get(), after.value().size()) != 0) return Error{errno};
  return {};
}

Status DatagramSocket::shutdown(int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return Error{EINVAL};
  const std::lock_guard guard(lock_);
  if (!connected_) return Error{ENOTCONN};
  if (how != SHUT_WR) read_open_ = false;
  if (how != SHUT_RD) write_open_ = false;
  wake_waiters();
  return {};
}

void DatagramSocket::flush(Duration timeout) {
  Lock lock(lock_);
  const auto idle = [&] {
    return std::all_of(endpoints_.begin(), endpoints_.end(),
                       [](const auto& endpoint) { return endpoint->idle(); });
  };
  const Instant deadline = now() + std::min(timeout, kFlushLimit);
  while (!idle()) {
    const Status waited = wait(lock, deadline, idle);
    if (!waited.ok() && waited.error().code != EINTR) return;
  }
}

void DatagramSocket::close() {
  const std::lock_guard guard(lock_);
  if (started_) {
    ServiceThread::instance().unwatch(channel_->fd, number());
    ServiceThread::instance().unwatch(udp_, number());
  }
  closed_ = true;
  wake_waiters();
}

Result<SocketAddress> DatagramSocket::name() {
  SocketAddress address;
  socklen_t length = sizeof(sockaddr_in6);
  if (::getsockname(udp_, address.get(), &length) != 0) return Error{errno};
  return address;
}

Result<SocketAddress> DatagramSocket::peer_name() {
  SocketAddress address;
  socklen_t length = sizeof(sockaddr_in6);
  if (::getpeername(udp_, address.get(), &length) != 0) return Error{errno};
  return address;
}

Result<size_t> DatagramSocket::send(Buffers& from, const Transfer& transfer) {
  Lock lock(lock_);
  const size_t size = from.left();
  if (const Status started = start(); !started.ok()) return started.error();
  if (!write_open_) return Error{EPIPE};
  if (error_) return Error{std::exchange(error_, 0)};
  if (!transfer.destination && !connected_) return Error{EDESTADDRREQ};
  const SocketAddress to = transfer.destination ? transfer.destination->unmapped() : *connected_;
  auto found = peer_for(to);
  if (!found.ok()) return found.error();
  Peer* peer = found.value();
  if (!through_queue_pair(*peer, size)) {
    peer->last_request = now();
    const Status sent =
        send_through_udp(*peer, to, UdpHeader::Op::kData, &from, transfer.flags & MSG_NOSIGNAL);
    if (!sent.ok()) return sent.error();
    return size;
  }
  DatagramEndpoint* endpoint = peer->endpoint;
  if (!endpoint->can_send()) progress();
  if (!endpoint->can_send()) {
    if (nonblocking(transfer.flags)) return Error{EAGAIN};
    const Status waited =
        wait(lock, send_deadline(), [&] { return closed_ || endpoint->can_send(); });
    if (!waited.ok()) return waited.error();
    if (closed_) return Error{EBADF};
    // The peer may have been evicted in the meantime.
    found = peer_for(to);
    if (!found.ok()) return found.error();
    peer = found.value();
    if (!peer->path || peer->endpoint != endpoint) return Error{EAGAIN};
  }
  if (const int error = endpoint->send(peer->path, peer->qpn, from)) return Error{error};
  return size;
}

Result<size_t> DatagramSocket::receive(Buffers& to, Transfer& transfer) {
  Lock lock(lock_);
  if (inbox_.empty()) progress();
  if (inbox_.empty() && read_open_ && !error_) {
    if (nonblocking(transfer.flags)) return Error{EAGAIN};
    const Status waited = wait(lock, receive_deadline(),
                               [&] { return closed_ || !read_open_ || error_ || !inbox_.empty(); });
    if (!waited.ok()) return waited.error();
  }
  if (closed_) return Error{EBADF};
  if (error_) return Error{std::exchange(error_, 0)};
  if (inbox_.empty()) return size_t{0};
  Message& message = inbox_.front();
  const size_t size = message.payload().size();
  const size_t copied = std::min(size, to.left());
  to.copy_in(message.payload().data(), copied);
  transfer.source = message.source.seen_by(family_);
  transfer.truncated = copied < size;
  if (!(transfer.flags & MSG_PEEK)) {
    if (message.endpoint) message.endpoint->release_slot(message.received.slot);
    udp_bytes_ -= message.bytes.size();
    inbox_.pop_front();
  }
  return transfer.flags & MSG_TRUNC ? size : copied;
}

void DatagramSocket::progress() {
  for (const auto& endpoint : endpoints_) {
    const bool could_send = endpoint->can_send();
    const bool was_idle = endpoint->idle();
    received_.clear();
    endpoint->take(&received_);
    bool changed = endpoint->can_send() != could_send || endpoint->idle() != was_idle;
    const Instant time = received_.empty() ? Instant{} : now();
    for (const DatagramEndpoint::ReceivedDatagram& received : received_) {
      if (const auto peer = peers_.find(received.source); peer != peers_.end()) {
        peer->second.last_received = time;
      }
      if (!wanted(received.source)) {
        endpoint->release_slot(received.slot);
        continue;
      }
      inbox_.push_back({received.source, endpoint.get(), received, {}});
      changed = true;
    }
    if (changed) wake_waiters();
  }
}

bool DatagramSocket::arm() {
  bool any = false;
  for (const auto& endpoint : endpoints_) any |= endpoint->completions().arm();
  return any;
}

void DatagramSocket::drain_events() {
  for (const auto& endpoint : endpoints_) endpoint->completions().drain_events();
}

void DatagramSocket::add_descriptors(std::vector<pollfd>* to) const {
  for (const auto& endpoint : endpoints_) to->push_back(endpoint->completions().descriptor());
}

short DatagramSocket::readiness() const {
  if (closed_) return POLLNVAL;
  int ready = 0;
  if (!inbox_.empty() || !read_open_) ready |= POLLIN | POLLRDNORM;
  const bool can_send = std::all_of(endpoints_.begin(), endpoints_.end(),
                                    [](const auto& endpoint) { return endpoint->can_send(); });
  if (can_send || !write_open_) ready |= POLLOUT | POLLWRNORM;
  if (!read_open_ && !write_open_) ready |= POLLHUP;
  if (error_) ready |= POLLERR;
  return static_cast<short>(ready);
}

// --- options ----------------------------------------------------------------------------------

Status DatagramSocket::set_option(int level, int option, const void* value, socklen_t size) {
  const std::lock_guard guard(lock_);
  if (level == SOL_SOCKET) {
    if (auto limit = set_time_limit(option, value, size)) return *limit;
  }
  if (level != SOL_RDMA && ::setsockopt(udp_, level, option, value, size) != 0) {
    return Error{errno};
  }
  const bool sizing = level == SOL_SOCKET && (option == SO_RCVBUF || option == SO_SNDBUF);
  if (level != SOL_RDMA && !sizing) return {};
  auto given = option_value<int>(value, size);
  if (!given.ok()) return given.error();
  const uint64_t number = given.value() < 0 ? 0 : static_cast<uint64_t>(given.value());
  if (level == SOL_SOCKET) {
    option == SO_RCVBUF ? sizes_.set_receive_bytes(number * 2) : sizes_.set_send_bytes(number * 2);
    return {};
  }
  switch (option) {
    case RDMA_SQSIZE:
      sizes_.set_send_slots(number);
      return {};
    case RDMA_RQSIZE:
      sizes_.set_receive_slots(number);
      return {};
    case RDMA_INLINE:
      sizes_.set_inline_bytes(number);
      return {};
    default:
      return Error{ENOTSUP};
  }
}

Status DatagramSocket::get_option(int level, int option, void* value, socklen_t* size) {
  if (!value || !size) return Error{EFAULT};
  const std::lock_guard guard(lock_);
  if (level == SOL_SOCKET) {
    if (auto limit = get_time_limit(option, value, size)) return *limit;
    if (option == SO_ERROR && error_) return store_value(std::exchange(error_, 0), value, size);
    if (option == SO_RCVBUF)
      return store_value(static_cast<int>(sizes_.receive_bytes), value, size);
    if (option == SO_SNDBUF) return store_value(static_cast<int>(sizes_.send_bytes), value, size);
  }
  if (level == SOL_RDMA) {
    if (option == RDMA_SQSIZE) return store_value(int{sizes_.send_slots}, value, size);
    if (option == RDMA_RQSIZE) return store_value(int{sizes_.receive_slots}, value, size);
    if (option == RDMA_INLINE) return store_value(int{sizes_.inline_bytes}, value, size);
    return Error{ENOTSUP};
  }
  if (::getsockopt(udp_, level, option, value, size) != 0) return Error{errno};
  return {};
}

}  // namespace verbena::rsocket
