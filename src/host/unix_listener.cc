// Accepts connections, even when the process has no descriptor left for them.
#include "host/unix_listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <cerrno>

#include "host/same_user.h"

namespace verbena::host {
namespace {

constexpr int kBacklog = 256;  // as many as there are slots

// Connections of other users cost at most about a tenth of a CPU's time.
constexpr int kOtherUsersPerPause = 64;
constexpr long kOtherUsersPauseNs = 2'000'000;
constexpr long kNoDescriptorPauseNs = 100'000'000;

bool watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

os::UniqueFd accept_from(int listener) {
  return os::UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

}  // namespace

UnixListener::UnixListener(const os::UnixAddress& name, int epoll)
    : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
      pause_end_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      epoll_(epoll) {
  const bool is_listening = socket_.valid() && pause_end_.valid() &&
                            ::bind(socket_.get(), name.get(), name.bytes) == 0 &&
                            ::listen(socket_.get(), kBacklog) == 0 &&
                            watch(epoll_, socket_.get()) && watch(epoll_, pause_end_.get());
  if (is_listening) {
    (void)has_spare();
    return;
  }
  const int error = errno;
  socket_.reset();
  errno = error;
}

bool UnixListener::has_spare() {
  if (!spare_.valid()) spare_ = os::UniqueFd(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
  return spare_.valid();
}

void UnixListener::report_connections(bool on) {
  epoll_event event{};
  event.events = on ? EPOLLIN : 0u;
  event.data.fd = socket_.get();
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, socket_.get(), &event);
  paused_ = !on;
}

void UnixListener::pause(long ns) {
  const itimerspec end{.it_interval = {}, .it_value = {0, ns}};
  if (::timerfd_settime(pause_end_.get(), 0, &end, nullptr) == 0) report_connections(false);
}

bool UnixListener::is_paused() {
  uint64_t expirations = 0;
  if (paused_ && ::read(pause_end_.get(), &expirations, sizeof expirations) == sizeof expirations)
    report_connections(true);
  return paused_;
}

UnixListener::Accepted UnixListener::accept_next(os::UniqueFd& socket) {
  if (!valid() || is_paused()) return Accepted::None;
  socket = accept_from(socket_.get());
  if (!socket.valid() && (errno == EMFILE || errno == ENFILE)) {
    spare_.reset();
    socket = accept_from(socket_.get());
    if (!socket.valid() && (errno == EMFILE || errno == ENFILE)) pause(kNoDescriptorPauseNs);
  }
  const bool accepted = socket.valid();
  if (accepted && peer_is_own_user(socket.get())) return Accepted::OwnUser;
  socket.reset();
  (void)has_spare();
  if (!accepted) return Accepted::None;
  if (++other_users_ == kOtherUsersPerPause) {
    other_users_ = 0;
    pause(kOtherUsersPauseNs);
  }
  return Accepted::OtherUser;
}

}  // namespace verbena::host
