// The functions of <rdma/rsocket.h>: arguments in, errno out.
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rsocket.h>

#include <cerrno>
#include <cstdarg>
#include <new>

#include "rsocket/address.h"
#include "rsocket/attendant.h"
#include "rsocket/bell.h"
#include "rsocket/buffers.h"
#include "rsocket/clock.h"
#include "rsocket/datagram_socket.h"
#include "rsocket/epoll_set.h"
#include "rsocket/poll.h"
#include "rsocket/sleep.h"
#include "rsocket/socket_table.h"
#include "rsocket/stream_socket.h"

#define RSOCKET_EXPORT __attribute__((visibility("default")))

namespace verbena::rsocket {
namespace {

constexpr Duration kClosePatience = seconds(10);

// The child of a fork starts without rsockets: their queue pairs are the parent's.
void after_fork_in_child() {
  on_fork_in_child();
  SocketTable::instance().disown_all();
  Attendant::forget_in_child();
  EpollSet::disown_in_child();
}

// Before there are threads: a fork must not find a static variable that another one is making.
[[gnu::constructor]] void prepare_for_forks() {
  SocketTable::instance();
  pthread_atfork(EpollSet::lock_before_fork, EpollSet::unlock_after_fork, after_fork_in_child);
}

template <typename T>
T told(const Error& error) {
  errno = error.code;
  return static_cast<T>(-1);
}

template <typename T>
T told(Result<T> result) {
  return result.ok() ? result.value() : told<T>(result.error());
}

int told(const Status& status) { return status.ok() ? 0 : told<int>(status.error()); }

ssize_t told_size(Result<size_t> result) {
  return result.ok() ? static_cast<ssize_t>(result.value()) : told<ssize_t>(result.error());
}

template <typename Answer, typename Work>
Answer guarded(Work work) {
  const Call inside;
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return told<Answer>(Error{ENOMEM});
  }
}

// What all calls have in common.
template <typename Answer, typename Work>
Answer call(Work work) {
  const Answer answer = guarded<Answer>(work);
  Call::end_if_cancelled();
  return answer;
}

template <typename Answer, typename Work>
Answer with_socket(int number, Work work) {
  return call<Answer>([&]() -> Answer {
    const auto socket = SocketTable::instance().find(number);
    if (!socket) return told<Answer>(Error{EBADF});
    return work(*socket);
  });
}

ssize_t send_pieces(int number, const iovec* pieces, size_t count, int flags, const sockaddr* to,
                    socklen_t to_length) {
  return with_socket<ssize_t>(number, [&](Socket& socket) -> ssize_t {
    auto from = Buffers::from(pieces, count);
    if (!from.ok()) return told<ssize_t>(from.error());
    Transfer transfer;
    transfer.flags = flags;
    SocketAddress address;
    if (to || to_length) {
      auto given = SocketAddress::from(to, to_length);
      if (!given.ok()) return told<ssize_t>(given.error());
      address = given.value();
      transfer.destination = &address;
    }
    return told_size(socket.send(from.value(), transfer));
  });
}

ssize_t receive_pieces(int number, const iovec* pieces, size_t count, int flags, sockaddr* source,
                       socklen_t* source_length, int* message_flags) {
  return with_socket<ssize_t>(number, [&](Socket& socket) -> ssize_t {
    auto to = Buffers::from(pieces, count);
    if (!to.ok()) return told<ssize_t>(to.error());
    Transfer transfer;
    transfer.flags = flags;
    transfer.wants_source = source != nullptr;
    auto received = socket.receive(to.value(), transfer);
    if (!received.ok()) return told<ssize_t>(received.error());
    if (source && transfer.source.family() != AF_UNSPEC) {
      transfer.source.copy_to(source, source_length);
    }
    if (message_flags) *message_flags = transfer.truncated ? MSG_TRUNC : 0;
    return static_cast<ssize_t>(received.value());
  });
}

bool is_piece_count(int count) { return count >= 0 && count <= IOV_MAX; }

int tell_address(Result<SocketAddress> address, sockaddr* to, socklen_t* length) {
  if (!length) return told<int>(Error{EFAULT});
  if (!address.ok()) return told<int>(address.error());
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
      return told<int>(Error{ENOTSUP});
    }
    const int file_flags = type & SOCK_NONBLOCK ? O_NONBLOCK : 0;
    const int descriptor_flags = type & SOCK_CLOEXEC ? FD_CLOEXEC : 0;
    return told(stream ? StreamSocket::create(domain, file_flags, descriptor_flags)
                       : DatagramSocket::create(domain, file_flags, descriptor_flags));
  });
}

RSOCKET_EXPORT int rbind(int socket, const sockaddr* addr, socklen_t addrlen) {
  return with_socket<int>(socket, [&](Socket& s) {
    auto address = SocketAddress::from(addr, addrlen);
    return address.ok() ? told(s.bind(address.value())) : told<int>(address.error());
  });
}

RSOCKET_EXPORT int rlisten(int socket, int backlog) {
  return with_socket<int>(socket, [&](Socket& s) { return told(s.listen(backlog)); });
}

RSOCKET_EXPORT int raccept(int socket, sockaddr* addr, socklen_t* addrlen) {
  return with_socket<int>(socket, [&](Socket& s) {
    SocketAddress peer;
    auto accepted = s.accept(&peer);
    if (accepted.ok() && addr) peer.copy_to(addr, addrlen);
    return told(accepted);
  });
}

RSOCKET_EXPORT int rconnect(int socket, const sockaddr* addr, socklen_t addrlen) {
  return with_socket<int>(socket, [&](Socket& s) {
    if (addr && addrlen >= sizeof(sa_family_t) && addr->sa_family == AF_UNSPEC) {
      return told(s.disconnect());
    }
    auto address = SocketAddress::from(addr, addrlen);
    return address.ok() ? told(s.connect(address.value())) : told<int>(address.error());
  });
}

RSOCKET_EXPORT int rshutdown(int socket, int how) {
  return with_socket<int>(socket, [&](Socket& s) { return told(s.shutdown(how)); });
}

RSOCKET_EXPORT int rclose(int socket) {
  return call<int>([&] {
    SocketTable& table = SocketTable::instance();
    if (const auto open = table.find(socket)) {
      // The attendant still finds it, so that a peer that hangs up ends the waiting.
      open->say_farewell();
      open->flush(kClosePatience);
      if (const auto ended = table.take_out(socket)) {
        ended->close();
        return 0;
      }
    }
    if (EpollSet::close(socket)) return 0;
    return table.close_disowned(socket) ? 0 : told<int>(Error{EBADF});
  });
}

RSOCKET_EXPORT ssize_t rrecv(int socket, void* buf, size_t len, int flags) {
  const iovec piece{buf, len};
  return receive_pieces(socket, &piece, 1, flags, nullptr, nullptr, nullptr);
}

RSOCKET_EXPORT ssize_t rrecvfrom(int socket, void* buf, size_t len, int flags, sockaddr* src_addr,
                                 socklen_t* addrlen) {
  const iovec piece{buf, len};
  return receive_pieces(socket, &piece, 1, flags, addrlen ? src_addr : nullptr, addrlen, nullptr);
}

RSOCKET_EXPORT ssize_t rrecvmsg(int socket, msghdr* msg, int flags) {
  if (!msg) return told<ssize_t>(Error{EFAULT});
  if (msg->msg_control && msg->msg_controllen) return told<ssize_t>(Error{ENOTSUP});
  return receive_pieces(socket, msg->msg_iov, msg->msg_iovlen, flags,
                        static_cast<sockaddr*>(msg->msg_name), &msg->msg_namelen, &msg->msg_flags);
}

RSOCKET_EXPORT ssize_t rsend(int socket, const void* buf, size_t len, int flags) {
  const iovec piece{const_cast<void*>(buf), len};
  return send_pieces(socket, &piece, 1, flags, nullptr, 0);
}

RSOCKET_EXPORT ssize_t rsendto(int socket, const void* buf, size_t len, int flags,
                               const sockaddr* dest_addr, socklen_t addrlen) {
  const iovec piece{const_cast<void*>(buf), len};
  return send_pieces(socket, &piece, 1, flags, dest_addr, addrlen);
}

RSOCKET_EXPORT ssize_t rsendmsg(int socket, const msghdr* msg, int flags) {
  if (!msg) return told<ssize_t>(Error{EFAULT});
  if (msg->msg_control && msg->msg_controllen) return told<ssize_t>(Error{ENOTSUP});
  return send_pieces(socket, msg->msg_iov, msg->msg_iovlen, flags,
                     static_cast<const sockaddr*>(msg->msg_name),
                     msg->msg_name ? msg->msg_namelen : 0);
}

RSOCKET_EXPORT ssize_t rread(int socket, void* buf, size_t count) {
  return rrecv(socket, buf, count, 0);
}

RSOCKET_EXPORT ssize_t rreadv(int socket, const iovec* iov, int iovcnt) {
  if (!is_piece_count(iovcnt)) return told<ssize_t>(Error{EINVAL});
  return receive_pieces(socket, iov, static_cast<size_t>(iovcnt), 0, nullptr, nullptr, nullptr);
}

RSOCKET_EXPORT ssize_t rwrite(int socket, const void* buf, size_t count) {
  return rsend(socket, buf, count, 0);
}

RSOCKET_EXPORT ssize_t rwritev(int socket, const iovec* iov, int iovcnt) {
  if (!is_piece_count(iovcnt)) return told<ssize_t>(Error{EINVAL});
  return send_pieces(socket, iov, static_cast<size_t>(iovcnt), 0, nullptr, 0);
}

RSOCKET_EXPORT int rpoll(pollfd* fds, nfds_t nfds, int timeout) {
  return call<int>([&] { return told(poll_all(fds, nfds, deadline_after_ms(timeout))); });
}

RSOCKET_EXPORT int repoll_create(int flags) {
  return call<int>([&] { return told(EpollSet::create(flags)); });
}

RSOCKET_EXPORT int repoll_ctl(int epfd, int op, int fd, epoll_event* event) {
  return call<int>([&] {
    const auto set = EpollSet::find(epfd);
    return set != nullptr ? told(set->control(op, fd, event)) : told<int>(Error{EBADF});
  });
}

RSOCKET_EXPORT int repoll_wait(int epfd, epoll_event* events, int maxevents, int timeout) {
  return call<int>([&] {
    const auto set = EpollSet::find(epfd);
    if (set == nullptr) return told<int>(Error{EBADF});
    return told(set->wait(events, maxevents, deadline_after_ms(timeout)));
  });
}

RSOCKET_EXPORT int rselect(int nfds, fd_set* readfds, fd_set* writefds, fd_set* exceptfds,
                           timeval* timeout) {
  return call<int>([&] {
    verbena::Instant deadline = verbena::kNever;
    if (timeout) {
      if (timeout->tv_sec < 0 || timeout->tv_usec < 0) return told<int>(Error{EINVAL});
      constexpr int64_t kLongest = int64_t{1} << 31;
      deadline = now() + verbena::seconds(std::min<int64_t>(timeout->tv_sec, kLongest)) +
                 verbena::microseconds(timeout->tv_usec);
    }
    return told(select_all(nfds, readfds, writefds, exceptfds, deadline));
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
  return with_socket<int>(
      socket, [&](Socket& s) { return told(s.set_option(level, optname, optval, optlen)); });
}

RSOCKET_EXPORT int rgetsockopt(int socket, int level, int optname, void* optval,
                               socklen_t* optlen) {
  return with_socket<int>(
      socket, [&](Socket& s) { return told(s.get_option(level, optname, optval, optlen)); });
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
        return told<int>(Error{ENOTSUP});
    }
  });
}

RSOCKET_EXPORT off_t riomap(int socket, void* buf, size_t len, int prot, int, off_t offset) {
  return with_socket<off_t>(socket,
                            [&](Socket& s) { return told(s.iomap(buf, len, prot, offset)); });
}

RSOCKET_EXPORT int riounmap(int socket, void* buf, size_t len) {
  return with_socket<int>(socket, [&](Socket& s) { return told(s.iounmap(buf, len)); });
}

RSOCKET_EXPORT size_t riowrite(int socket, const void* buf, size_t count, off_t offset, int flags) {
  return with_socket<size_t>(socket, [&](Socket& s) {
    const iovec piece{const_cast<void*>(buf), count};
    auto from = Buffers::from(&piece, 1);
    if (!from.ok()) return told<size_t>(from.error());
    return told(s.iowrite(from.value(), offset, flags));
  });
}

}  // extern "C"
