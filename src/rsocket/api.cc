// The functions of <rdma/rsocket.h>: they convert arguments and set errno.
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rsocket.h>

#include <cerrno>
#include <cstdarg>
#include <new>

#include "rsocket/address.h"
#include "rsocket/buffers.h"
#include "rsocket/clock.h"
#include "rsocket/datagram_socket.h"
#include "rsocket/epoll_set.h"
#include "rsocket/poll.h"
#include "rsocket/service_thread.h"
#include "rsocket/sleep.h"
#include "rsocket/socket_table.h"
#include "rsocket/stream_socket.h"
#include "rsocket/wakeup_fd.h"

#define RSOCKET_EXPORT __attribute__((visibility("default")))

namespace verbena::rsocket {
namespace {

constexpr Duration kCloseTimeout = seconds(10);

// The child of a fork starts without rsockets: the queue pairs belong to the parent. Async-signal-
// safe: another thread of the parent may have held the allocator's lock.
void after_fork_in_child() {
  on_fork_in_child();
  SocketTable::instance().disown_all();
  ServiceThread::abandon_in_child();
  EpollSet::unlock_after_fork();
}

// Runs before there are threads, so that no fork happens while another thread initialises a static
// variable.
[[gnu::constructor]] void prepare_for_forks() {
  SocketTable::instance();
  pthread_atfork(EpollSet::lock_before_fork, EpollSet::unlock_after_fork, after_fork_in_child);
}

template <typename T>
T return_or_errno(const Error& error) {
  errno = error.code;
  return static_cast<T>(-1);
}

template <typename T>
T return_or_errno(Result<T> result) {
  return result.ok() ? result.value() : return_or_errno<T>(result.error());
}

int return_or_errno(const Status& status) {
  return status.ok() ? 0 : return_or_errno<int>(status.error());
}

ssize_t return_size(Result<size_t> result) {
  return result.ok() ? static_cast<ssize_t>(result.value())
                     : return_or_errno<ssize_t>(result.error());
}

template <typename Value, typename Work>
Value guarded(Work work) {
  const Call inside;
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return return_or_errno<Value>(Error{ENOMEM});
  }
}

// The common part of all calls.
template <typename Value, typename Work>
Value call(Work work) {
  const Value value = guarded<Value>(work);
  Call::end_if_cancelled();
  return value;
}

template <typename Value, typename Work>
Value with_socket(int number, Work work) {
  return call<Value>([&]() -> Value {
    const auto socket = SocketTable::instance().find(number);
    if (!socket) return return_or_errno<Value>(Error{EBADF});
    return work(*socket);
  });
}

ssize_t send_areas(int number, const iovec* areas, size_t count, int flags, const sockaddr* to,
                   socklen_t to_length) {
  return with_socket<ssize_t>(number, [&](Socket& socket) -> ssize_t {
    auto from = Buffers::from(areas, count);
    if (!from.ok()) return return_or_errno<ssize_t>(from.error());
    Transfer transfer;
    transfer.flags = flags;
    SocketAddress address;
    if (to || to_length) {
      auto given = SocketAddress::from(to, to_length);
      if (!given.ok()) return return_or_errno<ssize_t>(given.error());
      address = given.value();
      transfer.destination = &address;
    }
    return return_size(socket.send(from.value(), transfer));
  });
}

ssize_t receive_areas(int number, const iovec* areas, size_t count, int flags, sockaddr* source,
                      socklen_t* source_length, int* message_flags) {
  return with_socket<ssize_t>(number, [&](Socket& socket) -> ssize_t {
    auto to = Buffers::from(areas, count);
    if (!to.ok()) return return_or_errno<ssize_t>(to.error());
    Transfer transfer;
    transfer.flags = flags;
    transfer.wants_source = source != nullptr;
    auto received = socket.receive(to.value(), transfer);
    if (!received.ok()) return return_or_errno<ssize_t>(received.error());
    if (source && transfer.source.family() != AF_UNSPEC) {
      transfer.source.copy_to(source, source_length);
    }
    if (message_flags) *message_flags = transfer.truncated ? MSG_TRUNC : 0;
    return static_cast<ssize_t>(received.value());
  });
}

bool is_piece_count(int count) { return count >= 0 && count <= IOV_MAX; }

int tell_address(Result<SocketAddress> address, sockaddr* to, socklen_t* length) {
  if (!length) return return_or_errno<int>(Error{EFAULT});
  if (!address.ok()) return return_or_errno<int>(address.error());
  address.value().copy_to(to, length);
  return 0;
}

}  // namespace
}  // namespace verbena::rsocket

using namespace verbena::rsocket;
using verbena::Error;

extern "C" {

RSOCKET_EXPORT int rsocket(int domain, int type, int protocol) {
  return call<int>([&] {
    constexpr int kFlags = SOCK_CLOEXEC | SOCK_NONBLOCK;
    const int kind = type & ~kFlags;
    const bool stream = kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
    const bool datagram = kind == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP);
    if ((domain != AF_INET && domain != AF_INET6) || !(stream || datagram) || Call::nested()) {
      return return_or_errno<int>(Error{ENOTSUP});
    }
    const int file_flags = type & SOCK_NONBLOCK ? O_NONBLOCK : 0;
    const int descriptor_flags = type & SOCK_CLOEXEC ? FD_CLOEXEC : 0;
    return return_or_errno(stream ? StreamSocket::create(domain, file_flags, descriptor_flags)
                                  : DatagramSocket::create(domain, file_flags, descriptor_flags));
  });
}

RSOCKET_EXPORT int rbind(int socket, const sockaddr* addr, socklen_t addrlen) {
  return with_socket<int>(socket, [&](Socket& s) {
    auto address = SocketAddress::from(addr, addrlen);
    return address.ok() ? return_or_errno(s.bind(address.value()))
                        : return_or_errno<int>(address.error());
  });
}

RSOCKET_EXPORT int rlisten(int socket, int backlog) {
  return with_socket<int>(socket, [&](Socket& s) { return return_or_errno(s.listen(backlog)); });
}

RSOCKET_EXPORT int raccept(int socket, sockaddr* addr, socklen_t* addrlen) {
  return with_socket<int>(socket, [&](Socket& s) {
    SocketAddress peer;
    auto accepted = s.accept(&peer);
    if (accepted.ok() && addr) peer.copy_to(addr, addrlen);
    return return_or_errno(accepted);
  });
}

RSOCKET_EXPORT int rconnect(int socket, const sockaddr* addr, socklen_t addrlen) {
  return with_socket<int>(socket, [&](Socket& s) {
    if (addr && addrlen >= sizeof(sa_family_t) && addr->sa_family == AF_UNSPEC) {
      return return_or_errno(s.disconnect());
    }
    auto address = SocketAddress::from(addr, addrlen);
    return address.ok() ? return_or_errno(s.connect(address.value()))
                        : return_or_errno<int>(address.error());
  });
}

RSOCKET_EXPORT int rshutdown(int socket, int how) {
  return with_socket<int>(socket, [&](Socket& s) { return return_or_errno(s.shutdown(how)); });
}

RSOCKET_EXPORT int rclose(int socket) {
  return call<int>([&] {
    SocketTable& table = SocketTable::instance();
    if (const auto open = table.find(socket)) {
      // The socket stays in the table meanwhile, so that the service thread can end the wait when
      // the peer disconnects.
      open->send_last_message();
      open->flush(kCloseTimeout);
      if (const auto ended = table.take_out(socket)) {
        ended->close();
        return 0;
      }
    }
    if (EpollSet::close(socket)) return 0;
    return table.close_disowned(socket) ? 0 : return_or_errno<int>(Error{EBADF});
  });
}

RSOCKET_EXPORT ssize_t rrecv(int socket, void* buf, size_t len, int flags) {
  const iovec area{buf, len};
  return receive_areas(socket, &area, 1, flags, nullptr, nullptr, nullptr);
}

RSOCKET_EXPORT ssize_t rrecvfrom(int socket, void* buf, size_t len, int flags, sockaddr* src_addr,
                                 socklen_t* addrlen) {
  const iovec area{buf, len};
  return receive_areas(socket, &area, 1, flags, addrlen ? src_addr : nullptr, addrlen, nullptr);
}

RSOCKET_EXPORT ssize_t rrecvmsg(int socket, msghdr* msg, int flags) {
  if (!msg) return return_or_errno<ssize_t>(Error{EFAULT});
  if (msg->msg_control && msg->msg_controllen) return return_or_errno<ssize_t>(Error{ENOTSUP});
  return receive_areas(socket, msg->msg_iov, msg->msg_iovlen, flags,
                       static_cast<sockaddr*>(msg->msg_name), &msg->msg_namelen, &msg->msg_flags);
}

RSOCKET_EXPORT ssize_t rsend(int socket, const void* buf, size_t len, int flags) {
  const iovec area{const_cast<void*>(buf), len};
  return send_areas(socket, &area, 1, flags, nullptr, 0);
}

RSOCKET_EXPORT ssize_t rsendto(int socket, const void* buf, size_t len, int flags,
                               const sockaddr* dest_addr, socklen_t addrlen) {
  const iovec area{const_cast<void*>(buf), len};
  return send_areas(socket, &area, 1, flags, dest_addr, addrlen);
}

RSOCKET_EXPORT ssize_t rsendmsg(int socket, const msghdr* msg, int flags) {
  if (!msg) return return_or_errno<ssize_t>(Error{EFAULT});
  if (msg->msg_control && msg->msg_controllen) return return_or_errno<ssize_t>(Error{ENOTSUP});
  return send_areas(socket, msg->msg_iov, msg->msg_iovlen, flags,
                    static_cast<const sockaddr*>(msg->msg_name),
                    msg->msg_name ? msg->msg_namelen : 0);
}

RSOCKET_EXPORT ssize_t rread(int socket, void* buf, size_t count) {
  return rrecv(socket, buf, count, 0);
}

RSOCKET_EXPORT ssize_t rreadv(int socket, const iovec* iov, int iovcnt) {
  if (!is_piece_count(iovcnt)) return return_or_errno<ssize_t>(Error{EINVAL});
  return receive_areas(socket, iov, static_cast<size_t>(iovcnt), 0, nullptr, nullptr, nullptr);
}

RSOCKET_EXPORT ssize_t rwrite(int socket, const void* buf, size_t count) {
  return rsend(socket, buf, count, 0);
}

RSOCKET_EXPORT ssize_t rwritev(int socket, const iovec* iov, int iovcnt) {
  if (!is_piece_count(iovcnt)) return return_or_errno<ssize_t>(Error{EINVAL});
  return send_areas(socket, iov, static_cast<size_t>(iovcnt), 0, nullptr, 0);
}

RSOCKET_EXPORT int rpoll(pollfd* fds, nfds_t nfds, int timeout) {
  return call<int>(
      [&] { return return_or_errno(poll_all(fds, nfds, deadline_after_ms(timeout))); });
}

RSOCKET_EXPORT int repoll_create(int flags) {
  return call<int>([&] { return return_or_errno(EpollSet::create(flags)); });
}

RSOCKET_EXPORT int repoll_ctl(int epfd, int op, int fd, epoll_event* event) {
  return call<int>([&] {
    const auto set = EpollSet::find(epfd);
    return set != nullptr ? return_or_errno(set->control(op, fd, event))
                          : return_or_errno<int>(Error{EBADF});
  });
}

RSOCKET_EXPORT int repoll_wait(int epfd, epoll_event* events, int maxevents, int timeout) {
  return call<int>([&] {
    const auto set = EpollSet::find(epfd);
    if (set == nullptr) return return_or_errno<int>(Error{EBADF});
    return return_or_errno(set->wait(events, maxevents, deadline_after_ms(timeout)));
  });
}

RSOCKET_EXPORT int rselect(int nfds, fd_set* readfds, fd_set* writefds, fd_set* exceptfds,
                           timeval* timeout) {
  return call<int>([&] {
    verbena::Instant deadline = verbena::kNever;
    if (timeout) {
      if (timeout->tv_sec < 0 || timeout->tv_usec < 0) return return_or_errno<int>(Error{EINVAL});
      constexpr int64_t kLongest = int64_t{1} << 31;
      deadline = now() + verbena::seconds(std::min<int64_t>(timeout->tv_sec, kLongest)) +
                 verbena::microseconds(timeout->tv_usec);
    }
    return return_or_errno(select_all(nfds, readfds, writefds, exceptfds, deadline));
  });
}

RSOCKET_EXPORT int rgetpeername(int socket, sockaddr* addr, socklen_t* addrlen) {
  return with_socket<int>(socket,
                          [&](Socket& s) { return tell_address(s.peer_name(), addr, addrlen); });
}

RSOCKET_EXPORT int rgetsockname(int socket, sockaddr* addr, socklen_t* addrlen) {
  return with_socket<int>(socket, [&](Socket& s) { return tell_address(s.name(), addr, addrlen); });
}

RSOCKET_EXPORT int rsetsockopt(int socket, int level, int optname, const void* optval,
                               socklen_t optlen) {
  return with_socket<int>(socket, [&](Socket& s) {
    return return_or_errno(s.set_option(level, optname, optval, optlen));
  });
}

RSOCKET_EXPORT int rgetsockopt(int socket, int level, int optname, void* optval,
                               socklen_t* optlen) {
  return with_socket<int>(socket, [&](Socket& s) {
    return return_or_errno(s.get_option(level, optname, optval, optlen));
  });
}

RSOCKET_EXPORT int rfcntl(int socket, int cmd, ...) {
  va_list arguments;
  va_start(arguments, cmd);
  const int argument = cmd == F_SETFL || cmd == F_SETFD ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return with_socket<int>(socket, [&](Socket& s) {
    switch (cmd) {
      case F_GETFL:
        return s.file_flags();
      case F_SETFL:
        s.set_file_flags(argument);
        return 0;
      case F_GETFD:
        return s.descriptor_flags();
      case F_SETFD:
        s.set_descriptor_flags(argument);
        return 0;
      default:
        return return_or_errno<int>(Error{ENOTSUP});
    }
  });
}

RSOCKET_EXPORT off_t riomap(int socket, void* buf, size_t len, int prot, int, off_t offset) {
  return with_socket<off_t>(
      socket, [&](Socket& s) { return return_or_errno(s.iomap(buf, len, prot, offset)); });
}

RSOCKET_EXPORT int riounmap(int socket, void* buf, size_t len) {
  return with_socket<int>(socket, [&](Socket& s) { return return_or_errno(s.iounmap(buf, len)); });
}

RSOCKET_EXPORT size_t riowrite(int socket, const void* buf, size_t count, off_t offset, int flags) {
  return with_socket<size_t>(socket, [&](Socket& s) {
    const iovec area{const_cast<void*>(buf), count};
    auto from = Buffers::from(&area, 1);
    if (!from.ok()) return return_or_errno<size_t>(from.error());
    return return_or_errno(s.iowrite(from.value(), offset, flags));
  });
}

}  // extern "C"
