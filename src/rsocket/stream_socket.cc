// StreamSocket: creation and destruction, names, and readiness for poll().
#include "rsocket/stream_socket.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace verbena::rsocket {
namespace {

// Under librspreload.so a program has a plain descriptor for each socket, opened just before it.
// Its select() takes the first descriptor that is either the socket's number or stands for it. So
// the number must not be lower than the plain one, even if descriptors that were open at that
// moment (such as one of our threads') have been closed since.
constexpr int kAbove = 64;

int number_above(int descriptor) {
  const int number = ::fcntl(descriptor, F_DUPFD_CLOEXEC, descriptor + kAbove);
  return number < 0 && errno == EINVAL ? ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0) : number;
}

}  // namespace

Result<std::unique_ptr<StreamSocket>> StreamSocket::make(int family, rdma_cm_id* id) {
  rdma_event_channel* channel = rdma_create_event_channel();
  if (!channel) return Error{errno};
  const int flags = ::fcntl(channel->fd, F_GETFL);
  bool made = flags >= 0 && ::fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) == 0;
  const int number = made ? number_above(channel->fd) : -1;
  made = number >= 0;
  if (made) {
    made = (id ? rdma_migrate_id(id, channel)
               : rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP)) == 0;
  }
  if (!made) {
    const int error = errno;
    if (number >= 0) ::close(number);
    rdma_destroy_event_channel(channel);
    return Error{error};
  }
  return std::unique_ptr<StreamSocket>(new StreamSocket(family, number, channel, id));
}

Result<int> StreamSocket::create(int family, int file_flags, int descriptor_flags) {
  auto made = make(family, nullptr);
  if (!made.ok()) return made.error();
  made.value()->set_file_flags(file_flags);
  made.value()->set_descriptor_flags(descriptor_flags);
  const int number = made.value()->number();
  if (const Status added = SocketTable::instance().add(std::move(made.value())); !added.ok()) {
    return added.error();
  }
  return number;
}

StreamSocket::StreamSocket(int family, int number, rdma_event_channel* channel, rdma_cm_id* id)
    : Socket(number), family_(family), channel_(channel), id_(id) {
  options_.sizes = Settings::get().sizes;
}

StreamSocket::~StreamSocket() {
  pending_.clear();
  iomaps_.reset();
  endpoint_.reset();
  rdma_destroy_id(id_);
  rdma_destroy_event_channel(channel_);
  ::close(number());
}

Result<SocketAddress> StreamSocket::name() {
  const std::lock_guard guard(lock_);
  SocketAddress address = SocketAddress::trusted(rdma_get_local_addr(id_));
  if (address.family() == AF_UNSPEC) address = SocketAddress::any(family_);
  return address.seen_by(family_);
}

Result<SocketAddress> StreamSocket::peer_name() {
  const std::lock_guard guard(lock_);
  if (!was_connected_) return Error{ENOTCONN};
  return SocketAddress::trusted(rdma_get_peer_addr(id_)).seen_by(family_);
}

bool StreamSocket::arm() { return was_connected_ && endpoint_->completions().arm(); }

void StreamSocket::drain_events() {
  if (was_connected_) endpoint_->completions().drain_events();
}

void StreamSocket::add_descriptors(std::vector<pollfd>* to) const {
  if (was_connected_) to->push_back(endpoint_->completions().descriptor());
}

short StreamSocket::readiness() const {
  constexpr short kIn = POLLIN | POLLRDNORM;
  constexpr short kOut = POLLOUT | POLLWRNORM;
  if (closed_) return POLLNVAL;
  const auto error = static_cast<short>(error_ ? POLLERR : 0);
  switch (state_) {
    case State::kIdle:
      return kOut | POLLHUP;
    case State::kListening:
      return ready_.empty() ? short{0} : kIn;
    case State::kConnected: {
      const bool end = !peer_open_ || !read_open_;
      int ready = error;
      if (end || endpoint_->ring().readable() > 0) ready |= kIn;
      if (end) ready |= POLLRDHUP;
      if (!write_open_ || endpoint_->window().writable()) ready |= kOut;
      return static_cast<short>(ready);
    }
    case State::kOver: {
      // Programs take POLLHUP for the end even if there is data left to read.
      const bool drained = !was_connected_ || endpoint_->ring().readable() == 0;
      return static_cast<short>(kIn | kOut | POLLRDHUP | (drained ? POLLHUP : 0) | error);
    }
    default:
      return 0;
  }
}

}  // namespace verbena::rsocket
