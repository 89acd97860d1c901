// Socket: the common part of stream and datagram sockets; see socket.h.
#include "rsocket/socket.h"

#include <fcntl.h>
#include <sys/time.h>

#include <cstring>
#include <new>

#include "rsocket/clock.h"
#include "rsocket/per_thread.h"
#include "rsocket/sleep.h"

namespace verbena::rsocket {

namespace {

// poll() reports these even if they are not requested.
constexpr short kAlways = POLLERR | POLLHUP | POLLNVAL;

// Limit of consecutive polls without progress for a caller whose events are already ready.
constexpr uint32_t kMaxPollsWithoutProgress = 16;

// The descriptors that one thread sleeps on. The vector grows to its working size once.
std::vector<pollfd>& descriptors_of_this_thread() { return PerThread<std::vector<pollfd>>::get(); }

Instant deadline_of(Duration limit) { return limit.ns == 0 ? kNever : now() + limit; }

}  // namespace

Status Socket::listen(int) { return Error{EOPNOTSUPP}; }
Result<int> Socket::accept(SocketAddress*) { return Error{EOPNOTSUPP}; }
Status Socket::disconnect() { return Error{EAFNOSUPPORT}; }
Result<off_t> Socket::iomap(void*, size_t, int, off_t) { return Error{EINVAL}; }
Status Socket::iounmap(void*, size_t) { return Error{EINVAL}; }
Result<size_t> Socket::iowrite(Buffers&, off_t, int) { return Error{EINVAL}; }

int Socket::file_flags() {
  const std::lock_guard guard(lock_);
  return O_RDWR | file_flags_;
}

void Socket::set_file_flags(int flags) {
  const std::lock_guard guard(lock_);
  file_flags_ = flags & ~O_ACCMODE;
}

int Socket::descriptor_flags() {
  const std::lock_guard guard(lock_);
  return descriptor_flags_;
}

void Socket::set_descriptor_flags(int flags) {
  const std::lock_guard guard(lock_);
  descriptor_flags_ = flags & FD_CLOEXEC;
}

bool Socket::nonblocking(int flags) const {
  return (file_flags_ & O_NONBLOCK) || (flags & MSG_DONTWAIT);
}

Instant Socket::send_deadline() const { return deadline_of(send_limit_); }
Instant Socket::receive_deadline() const { return deadline_of(receive_limit_); }

void Socket::inherit_time_limits(const Socket& from) {
  send_limit_ = from.send_limit_;
  receive_limit_ = from.receive_limit_;
}

std::optional<Status> Socket::set_time_limit(int option, const void* value, socklen_t size) {
  if (option != SO_RCVTIMEO && option != SO_SNDTIMEO) return std::nullopt;
  timeval limit;
  if (size < sizeof limit) return Error{EINVAL};
  std::memcpy(&limit, value, sizeof limit);
  if (limit.tv_usec < 0 || limit.tv_usec >= 1'000'000) return Error{EDOM};
  constexpr int64_t kLongest = int64_t{365} * 24 * 3600;
  const int64_t whole = std::clamp<int64_t>(limit.tv_sec, 0, kLongest);
  (option == SO_RCVTIMEO ? receive_limit_ : send_limit_) =
      seconds(whole) + microseconds(limit.tv_usec);
  return Status{};
}

std::optional<Status> Socket::get_time_limit(int option, void* value, socklen_t* size) const {
  if (option != SO_RCVTIMEO && option != SO_SNDTIMEO) return std::nullopt;
  const int64_t us = (option == SO_RCVTIMEO ? receive_limit_ : send_limit_).ns / 1000;
  const timeval limit{us / 1'000'000, us % 1'000'000};
  if (*size < sizeof limit) return Error{EINVAL};
  std::memcpy(value, &limit, sizeof limit);
  *size = sizeof limit;
  return Status{};
}

short Socket::poll_now(short events) {
  const std::lock_guard guard(lock_);
  // If all requested events are ready, the caller is about to send or receive. Progress here would
  // send ACKs and updates in packets of their own, which otherwise share those of the next call.
  // But the caller may be waiting for the end of the connection, so progress happens from time to
  // time.
  const bool has_all_events = events != 0 && (readiness() & events) == events;
  if (!has_all_events || ++polls_without_progress_ == kMaxPollsWithoutProgress) {
    polls_without_progress_ = 0;
    progress();
  }
  return static_cast<short>(readiness() & (events | kAlways));
}

short Socket::poll_and_register(short events, Waiters::Node* node,
                                std::vector<pollfd>* descriptors) {
  const std::lock_guard guard(lock_);
  if (!node->is_added) waiters_.add(node);
  arm_and_progress();
  add_descriptors(descriptors);
  return static_cast<short>(readiness() & (events | kAlways));
}

void Socket::unregister(Waiters::Node* node) {
  const std::lock_guard guard(lock_);
  if (node->is_added) remove_waiter(node);
}

void Socket::remove_waiter(Waiters::Node* node) {
  waiters_.remove(node);
  if (waiters_.empty() || !arm()) return;
  try {
    progress();
  } catch (const std::bad_alloc&) {  // destructors call this; the remaining threads make progress
    wake_waiters();
  }
}

void Socket::arm_and_progress() {
  arm();
  progress();
}

short Socket::poll_woken(short events) {
  const std::lock_guard guard(lock_);
  drain_events();
  progress();
  return static_cast<short>(readiness() & (events | kAlways));
}

Socket::Sleeper::Sleeper(Socket& socket, Lock& lock) : socket_(socket), lock_(lock) {
  auto wakeup = WakeupFd::of_this_thread();
  if (!wakeup.ok()) {
    status_ = wakeup.error();
    return;
  }
  node_.wakeup = wakeup.value();
  socket_.waiters_.add(&node_);
}

Socket::Sleeper::~Sleeper() {
  if (node_.is_added) socket_.remove_waiter(&node_);
}

void Socket::Sleeper::arm() {
  std::vector<pollfd>& descriptors = descriptors_of_this_thread();
  descriptors.clear();
  descriptors.push_back({node_.wakeup->fd(), POLLIN, 0});
  socket_.arm_and_progress();
  socket_.add_descriptors(&descriptors);
}

Status Socket::Sleeper::sleep(Instant deadline) {
  std::vector<pollfd>& descriptors = descriptors_of_this_thread();
  lock_.unlock();
  const Status slept = sleep_on(descriptors.data(), descriptors.size(), deadline);
  if (slept.ok() && descriptors[0].revents) node_.wakeup->clear();
  lock_.lock();
  socket_.drain_events();
  return slept;
}

}  // namespace verbena::rsocket
