// StreamSocket: listening. The attendant takes each request as it comes and sets the connection up,
// so that a client need not wait for accept(); accept() takes from the ready ones. As many as the
// backlog says are set up or ready; further requests are left with the connection manager.
#include <algorithm>
#include <array>
#include <cerrno>

#include "rsocket/attendant.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

Status StreamSocket::listen(int backlog) {
  const std::lock_guard guard(lock_);
  if (state_ != State::kIdle && state_ != State::kListening) return Error{EINVAL};
  backlog_ = static_cast<size_t>(std::clamp(backlog, 1, SOMAXCONN));
  if (state_ == State::kListening) {
    pause_or_resume();
    return {};
  }
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

Result<int> StreamSocket::accept(SocketAddress* peer) {
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
  SocketTable::Ref child = std::move(ready_.front());
  ready_.pop_front();
  pause_or_resume();
  lock.unlock();
  if (peer) {
    if (auto name = child->peer_name(); name.ok()) *peer = name.value();
  }
  return child->number();
}

void StreamSocket::pause_or_resume() {
  const bool pause = backlog_full();
  if (state_ != State::kListening || closed_ || pause == paused_) return;
  if (pause) {
    unwatch();
  } else if (!watch().ok()) {
    return;
  }
  paused_ = pause;
}

void StreamSocket::on_request(const Event& event) {
  const auto peer = ConnectData::load(event.private_data);
  if (peer && adopt(event, *peer).ok()) return;
  rdma_reject(event.id, nullptr, 0);
  rdma_destroy_id(event.id);
}

// On failure the id is still the caller's.
Status StreamSocket::adopt(const Event& event, const ConnectData& peer) {
  Options options;
  {
    const std::lock_guard guard(lock_);
    if (state_ != State::kListening || closed_) return Error{ECONNREFUSED};
    options = options_;
  }
  auto made = make(family_, event.id);
  if (!made.ok()) return made.error();
  const int number = made.value()->number();
  StreamSocket* child = made.value().get();
  child->options_ = options;
  child->listener_ = this->number();
  child->state_ = State::kAccepting;
  if (const Status added = SocketTable::instance().add(std::move(made.value())); !added.ok()) {
    return {};  // went with its id
  }
  {
    const std::lock_guard guard(lock_);
    if (!closed_) children_.insert(number);  // otherwise it is nobody's, and given up when settled
    pause_or_resume();
  }
  if (!child->accept_as_child(peer, event.parameters).ok()) {
    rdma_reject(event.id, nullptr, 0);
    child_settled(number, false);
    abort_child(number);
  }
  return {};
}

Status StreamSocket::accept_as_child(const ConnectData& peer, const rdma_conn_param& offered) {
  const std::lock_guard guard(lock_);
  auto endpoint = StreamEndpoint::create(id_, options_.sizes);
  if (!endpoint.ok()) return endpoint.error();
  endpoint_ = std::move(endpoint.value());
  endpoint_->connected(peer);
  if (const Status watching = watch(); !watching.ok()) return watching;
  std::array<std::byte, ConnectData::kSize> data;
  endpoint_->connect_data().store(data.data());
  rdma_conn_param parameters = offered;
  parameters.private_data = data.data();
  parameters.private_data_len = data.size();
  if (rdma_accept(id_, &parameters) != 0) return Error{errno};
  return {};
}

void StreamSocket::report_to(int listener, bool usable) {
  auto socket = SocketTable::instance().find(listener);
  // Another socket may have that number by now; it will not know this one.
  auto* found = dynamic_cast<StreamSocket*>(socket.get());
  if (found && found->child_settled(number(), usable) && usable) return;
  abort_child(number());
}

bool StreamSocket::child_settled(int number, bool usable) {
  const std::lock_guard guard(lock_);
  if (children_.erase(number) == 0) return false;
  if (usable) {
    if (auto child = SocketTable::instance().find(number)) ready_.push_back(std::move(child));
    ring_waiters();
  }
  pause_or_resume();
  return true;
}

void StreamSocket::abort_child(int number) {
  auto child = SocketTable::instance().take_out(number);
  auto* socket = dynamic_cast<StreamSocket*>(child.get());
  if (!socket) return;
  {
    const std::lock_guard guard(socket->lock_);
    socket->options_.lingering = {.l_onoff = 1, .l_linger = 0};
  }
  socket->close();
}

}  // namespace verbena::rsocket
