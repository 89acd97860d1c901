// StreamSocket: listening. The service thread takes each request and sets up the connection, so
// that a client need not wait for accept(). Until then a connection is little more than its ID,
// which uses the listener's channel; accept() makes a socket of it.
#include <algorithm>
#include <array>
#include <cerrno>

#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

namespace {
// Programs that pass a backlog of 1 expect TCP's tolerance for simultaneous connections. A full
// backlog refuses connections here, so it is never smaller than this.
constexpr int kMinBacklog = 128;
}  // namespace

StreamSocket::Pending::~Pending() {
  endpoint.reset();
  if (id) rdma_destroy_id(id);
}

Status StreamSocket::listen(int backlog) {
  const std::lock_guard events(event_mutex_);
  const std::lock_guard guard(lock_);
  if (closed_) return Error{EBADF};
  if (const Status renewed = renew(); !renewed.ok()) return renewed;
  if (state_ != State::kIdle && state_ != State::kListening) return Error{EINVAL};
  backlog_ = static_cast<size_t>(std::clamp(backlog, kMinBacklog, SOMAXCONN));
  if (state_ == State::kListening) return {};
  if (!bound_) {
    SocketAddress any = SocketAddress::any(family_);
    if (rdma_bind_addr(id_, any.get()) != 0) return Error{errno};
    bound_ = any;
  }
  if (rdma_listen(id_, static_cast<int>(backlog_)) != 0) return Error{errno};
  if (const Status watching = watch(); !watching.ok()) return watching;
  state_ = State::kListening;
  return {};
}

// As in TCP: connections that were not accepted are closed, new ones are refused, and the socket
// can listen again, on the same port if it was bound to one.
Status StreamSocket::stop_listening() {
  const std::lock_guard events(event_mutex_);
  const std::lock_guard guard(lock_);
  if (state_ != State::kListening) return {};  // another thread was first
  unwatch();
  ready_.clear();
  pending_.clear();
  const Status renewed = fresh_id();
  if (!renewed.ok()) bound_.reset();  // another process has the port
  wake_waiters();
  return renewed;
}

Result<int> StreamSocket::accept(SocketAddress* peer) {
  for (;;) {
    Lock lock(lock_);
    const auto ready = [&] { return !ready_.empty() || closed_ || state_ != State::kListening; };
    if (!ready()) {
      if (nonblocking(0)) return Error{EAGAIN};
      if (const Status waited = wait(lock, receive_deadline(), ready); !waited.ok()) {
        return waited.error();
      }
    }
    if (closed_) return Error{EBADF};
    if (state_ != State::kListening) return Error{EINVAL};
    lock.unlock();
    const std::lock_guard events(event_mutex_);
    lock.lock();
    if (ready_.empty()) continue;  // another thread was first
    auto child = make_socket_of(*pending_.at(ready_.front()));
    if (!child.ok()) return child.error();
    pending_.erase(ready_.front());
    ready_.pop_front();
    lock.unlock();
    const int number = child.value()->number();
    if (peer) *peer = child.value()->peer_name().value();
    if (const Status added = SocketTable::instance().add(std::move(child.value())); !added.ok()) {
      return added.error();
    }
    return number;
  }
}

// Requires event_mutex_ and the lock. On failure nothing has changed.
Result<std::unique_ptr<StreamSocket>> StreamSocket::make_socket_of(Pending& pending) {
  auto made = make(family_, pending.id);
  if (!made.ok()) return made.error();
  StreamSocket& child = *made.value();
  pending.id = nullptr;
  child.options_ = options_;
  child.inherit_time_limits(*this);
  child.endpoint_ = std::move(pending.endpoint);
  const std::lock_guard guard(child.lock_);  // uncontended: no other thread knows the socket
  child.become_connected();
  if (pending.disconnected) child.on_disconnected();
  (void)child.watch();  // without it only the peer's last message reports the end
  return made;
}

// Connection events of IDs that are not sockets yet.
void StreamSocket::on_child_event(const Event& event) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) return on_request(event);
  const std::lock_guard guard(lock_);
  const auto it = pending_.find(event.id);
  if (it == pending_.end()) return;
  Pending& pending = *it->second;
  switch (event.type) {
    case RDMA_CM_EVENT_ESTABLISHED:
      if (pending.established) return;
      pending.established = true;
      ready_.push_back(event.id);
      return wake_waiters();
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
      return;
    default:
      pending.disconnected = true;
      if (!pending.established) pending_.erase(it);
  }
}

void StreamSocket::on_request(const Event& event) {
  const auto peer = ConnectData::load(event.private_data);
  if (peer && set_up(event, *peer).ok()) return;
  rdma_reject(event.id, nullptr, 0);
  rdma_destroy_id(event.id);
}

// On failure the caller keeps the ID.
Status StreamSocket::set_up(const Event& event, const ConnectData& peer) {
  Sizes sizes;
  {
    const std::lock_guard guard(lock_);
    if (closed_ || state_ != State::kListening || pending_.size() >= backlog_) {
      return Error{ECONNREFUSED};
    }
    sizes = options_.sizes;
  }
  auto endpoint = StreamEndpoint::create(event.id, sizes);
  if (!endpoint.ok()) return endpoint.error();
  endpoint.value()->connected(peer);
  std::array<std::byte, ConnectData::kSize> data;
  endpoint.value()->connect_data().store(data.data());
  rdma_conn_param parameters = event.parameters;
  parameters.private_data = data.data();
  parameters.private_data_len = data.size();
  if (rdma_accept(event.id, &parameters) != 0) return Error{errno};

  auto pending = std::make_unique<Pending>();
  pending->id = event.id;
  pending->endpoint = std::move(endpoint.value());
  const std::lock_guard guard(lock_);
  if (!closed_) pending_.emplace(event.id, std::move(pending));
  return {};
}

}  // namespace verbena::rsocket
