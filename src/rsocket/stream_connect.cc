// StreamSocket: connecting. connect() starts the first step; connection events, which the service
// thread takes, drive the others.
#include <fcntl.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "rsocket/clock.h"
#include "rsocket/service_thread.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

namespace {

// Each attempt to resolve has twice the timeout of the one before.
constexpr int kFirstAttemptMs = 1000;
constexpr unsigned kAttempts = 7;
// The largest retry count that the connection manager supports.
constexpr uint8_t kRetries = 7;
constexpr uint8_t kReceiverNotReadyRetries = 7;  // unlimited

int error_of_status(int status, int otherwise) {
  return status == 0 ? otherwise : std::abs(status);
}

}  // namespace

Status StreamSocket::watch() {
  if (watched_) return {};
  const Status watching = ServiceThread::instance().watch(channel_->fd, number());
  watched_ = watching.ok();
  return watching;
}

void StreamSocket::unwatch() {
  if (!watched_) return;
  ServiceThread::instance().unwatch(channel_->fd, number());
  watched_ = false;
}

Status StreamSocket::bind(const SocketAddress& address) {
  if (family_ == AF_INET && address.family() != AF_INET) return Error{EAFNOSUPPORT};
  const std::lock_guard events(event_mutex_);
  const std::lock_guard guard(lock_);
  if (const Status renewed = renew(); !renewed.ok()) return renewed;
  if (state_ != State::kIdle || bound_) return Error{EINVAL};
  SocketAddress local = address.unmapped();
  if (rdma_bind_addr(id_, local.get()) != 0) return Error{errno};
  bound_ = local;
  return {};
}

// A socket that was never connected can be used again.
Status StreamSocket::renew() {
  return state_ == State::kOver && !was_connected_ ? fresh_id() : Status{};
}

// An ID serves for one connection attempt, or for listening once.
Status StreamSocket::fresh_id() {
  endpoint_.reset();
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP) != 0) return Error{errno};
  rdma_destroy_id(std::exchange(id_, id));
  state_ = State::kIdle;
  error_ = 0;
  outcome_pending_ = false;
  if (const Status applied = apply_options(); !applied.ok()) return applied;
  if (bound_ && rdma_bind_addr(id_, bound_->get()) != 0) return Error{errno};
  return {};
}

Status StreamSocket::connect(const SocketAddress& address) {
  if (family_ == AF_INET && address.family() != AF_INET) return Error{EAFNOSUPPORT};
  Lock events(event_mutex_);
  Lock lock(lock_);
  if (closed_) return Error{EBADF};
  if (outcome_pending_) {
    if (connecting() && nonblocking(0)) return Error{EALREADY};
    events.unlock();
    return report_outcome(lock);
  }
  if (state_ == State::kListening || was_connected_) return Error{EISCONN};
  if (const Status renewed = renew(); !renewed.ok()) return renewed;
  destination_ = address.unmapped();
  if (destination_.is_any()) {  // as in TCP: this host
    destination_ =
        destination_.family() == AF_INET
            ? SocketAddress::make_v4(in_addr{htonl(INADDR_LOOPBACK)}, destination_.port())
            : SocketAddress::make_v6(in6addr_loopback, destination_.port(), 0);
  }
  if (const Status watching = watch(); !watching.ok()) return watching;
  retries_ = 0;
  if (const Status started = resolve_address(); !started.ok()) {
    end(started.error().code);
    return Error{take_error()};
  }
  outcome_pending_ = true;
  events.unlock();
  if (nonblocking(0)) return Error{EINPROGRESS};
  return report_outcome(lock);
}

Status StreamSocket::report_outcome(Lock& lock) {
  const Status connected = wait_connected(lock, send_deadline());
  if (connecting())
    return connected.error().code == EAGAIN ? Error{EINPROGRESS} : connected.error();
  outcome_pending_ = false;
  // Another call has reported the reason.
  if (!connected.ok() && connected.error().code == ENOTCONN) return Error{ECONNABORTED};
  return connected;
}

Status StreamSocket::wait_connected(Lock& lock, Instant deadline) {
  const Status waited = wait(lock, deadline, [&] { return closed_ || !connecting(); });
  if (!waited.ok()) return waited;
  if (closed_) return Error{EBADF};
  if (was_connected_) return {};
  const int error = take_error();
  return Error{error ? error : ENOTCONN};
}

Status StreamSocket::resolve_address() {
  state_ = State::kResolvingAddress;
  const int limit_ms = kFirstAttemptMs << retries_++;
  if (rdma_resolve_addr(id_, nullptr, destination_.get(), limit_ms) != 0) return Error{errno};
  return {};
}

Status StreamSocket::resolve_route() {
  state_ = State::kResolvingRoute;
  const int limit_ms = kFirstAttemptMs << retries_++;
  const int rc = route_.empty() ? rdma_resolve_route(id_, limit_ms)
                                : rdma_set_option(id_, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH,
                                                  route_.data(), route_.size());
  if (rc != 0) return Error{errno};
  return {};
}

Status StreamSocket::request_connection() {
  auto endpoint = StreamEndpoint::create(id_, options_.sizes);
  if (!endpoint.ok()) return endpoint.error();
  endpoint_ = std::move(endpoint.value());
  std::array<std::byte, ConnectData::kSize> data;
  endpoint_->connect_data().store(data.data());
  rdma_conn_param parameters{};
  parameters.private_data = data.data();
  parameters.private_data_len = data.size();
  parameters.flow_control = 1;
  parameters.retry_count = kRetries;
  parameters.rnr_retry_count = kReceiverNotReadyRetries;
  state_ = State::kConnecting;
  if (rdma_connect(id_, &parameters) != 0) return Error{errno};
  return {};
}

void StreamSocket::end(int error) {
  if (state_ == State::kOver) return;
  state_ = State::kOver;
  error_ = error;
  peer_open_ = false;
  wake_waiters();
}

void StreamSocket::retry_or_end(int error, Status (StreamSocket::*step)()) {
  if (error != ETIMEDOUT || retries_ >= kAttempts) return end(error);
  if (const Status again = (this->*step)(); !again.ok()) end(again.error().code);
}

std::optional<StreamSocket::Event> StreamSocket::next_event() {
  rdma_cm_event* event;
  if (rdma_get_cm_event(channel_, &event) != 0) return std::nullopt;
  Event copy{event->event, event->status, event->id, event->param.conn, {}};
  if (const auto* data = static_cast<const std::byte*>(copy.parameters.private_data)) {
    copy.private_data.assign(data, data + copy.parameters.private_data_len);
  }
  copy.parameters.private_data = nullptr;
  copy.parameters.private_data_len = 0;
  rdma_ack_cm_event(event);
  return copy;
}

void StreamSocket::on_ready(int) {
  const std::lock_guard events(event_mutex_);
  while (const std::optional<Event> event = next_event()) {
    Lock lock(lock_);
    if (event->id == id_ && event->type != RDMA_CM_EVENT_CONNECT_REQUEST) {
      on_event(*event);
    } else {
      lock.unlock();
      on_child_event(*event);
    }
  }
}

void StreamSocket::on_event(const Event& event) {
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (state_ != State::kResolvingAddress) return;
      retries_ = 0;
      if (const Status next = resolve_route(); !next.ok()) end(next.error().code);
      return;
    case RDMA_CM_EVENT_ADDR_ERROR:
      if (state_ != State::kResolvingAddress) return;
      return retry_or_end(error_of_status(event.status, EHOSTUNREACH),
                          &StreamSocket::resolve_address);
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (state_ != State::kResolvingRoute) return;
      if (const Status next = request_connection(); !next.ok()) end(next.error().code);
      return;
    case RDMA_CM_EVENT_ROUTE_ERROR:
      if (state_ != State::kResolvingRoute) return;
      return retry_or_end(error_of_status(event.status, ENETUNREACH), &StreamSocket::resolve_route);
    case RDMA_CM_EVENT_ESTABLISHED:
      return on_established(event);
    case RDMA_CM_EVENT_REJECTED:  // the status is the connection manager's reason
      return end(ECONNREFUSED);
    case RDMA_CM_EVENT_UNREACHABLE:
      return end(error_of_status(event.status, ETIMEDOUT));
    case RDMA_CM_EVENT_CONNECT_ERROR:
      // EINVAL: the peer accepted and disconnected before this end was ready.
      return end(event.status == -EINVAL ? ECONNREFUSED
                                         : error_of_status(event.status, ECONNABORTED));
    case RDMA_CM_EVENT_DISCONNECTED:
      return on_disconnected();
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return end(ENODEV);
    default:
      return;
  }
}

void StreamSocket::on_established(const Event& event) {
  if (state_ != State::kConnecting) return;
  const auto peer = ConnectData::load(event.private_data);
  if (!peer) {
    // The peer does not speak this protocol.
    rdma_disconnect(id_);
    return end(ECONNREFUSED);
  }
  endpoint_->connected(*peer);
  become_connected();
}

void StreamSocket::become_connected() {
  iomaps_ = std::make_unique<Iomaps>(endpoint_->protection_domain(), endpoint_->peer().iomap_count);
  peer_open_ = read_open_ = write_open_ = was_connected_ = true;
  state_ = State::kConnected;
  endpoint_->established();
  if (options_.keepalive) schedule_probe(now());
  progress();  // announces the second half to the peer
  wake_waiters();
}

void StreamSocket::on_disconnected() {
  if (state_ == State::kConnected) progress();  // takes the data that the peer sent before
  end(was_connected_ ? 0 : ECONNRESET);
  rdma_disconnect(id_);
}

}  // namespace verbena::rsocket
