// The system calls of a zero-copy send, and the cleanup if they fail.
#include "datapath/udp/zero_copy_sender.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "os/socket_options.h"

namespace verbena::datapath {
namespace {

// Bytes that are copied: steering and packet filters read them.
constexpr size_t kHeadBytes = 64;

// Since Linux 6.5 one datagram takes all pages of a pipe.
bool kernel_takes_pages() {
  utsname name{};
  int major = 0;
  int minor = 0;
  return ::uname(&name) == 0 && std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
         (major > 6 || (major == 6 && minor >= 5));
}

}  // namespace

ZeroCopySender::ZeroCopySender() : works_(kernel_takes_pages()) {}

bool ZeroCopySender::fill_pipe(std::span<std::byte> bytes) {
  if (!pipe_in_.valid()) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    pipe_out_ = os::UniqueFd(ends[0]);
    pipe_in_ = os::UniqueFd(ends[1]);
  }
  // The kernel and the receiver read the pages from now on. The fence orders non-temporal stores
  // before that.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const iovec part{bytes.data(), bytes.size()};
  const long taken = ::syscall(SYS_vmsplice, pipe_in_.get(), &part, 1, SPLICE_F_NONBLOCK);
  works_ = taken ==
           static_cast<long>(bytes.size());  // failure (forbidden, or pipe too small) is permanent
  return works_;
}

bool ZeroCopySender::send(int fd, msghdr message, std::span<std::byte> bytes) {
  if (fill_pipe(bytes.subspan(kHeadBytes))) {
    iovec head{bytes.data(), kHeadBytes};
    message.msg_iov = &head;
    message.msg_iovlen = 1;
    // syscall() is not a cancellation point: the thread must not be cancelled between the two
    // calls.
    if (::syscall(SYS_sendmsg, fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE) ==
        static_cast<long>(kHeadBytes)) {
      const auto rest = static_cast<long>(bytes.size() - kHeadBytes);
      const long sent =
          ::syscall(SYS_splice, pipe_out_.get(), nullptr, fd, nullptr, rest, SPLICE_F_NONBLOCK);
      if (sent == rest) return true;
      works_ = sent < 0 && errno != EINVAL && errno != ENOSYS && errno != EPERM;
      // Bytes left in the socket must not become part of the next send. This sends them; the last
      // packet has a wrong ICRC and is dropped by the receiver.
      os::set_option(fd, IPPROTO_UDP, UDP_CORK, 0);
    }
  }
  // Discard the pipe's content.
  pipe_out_.reset();
  pipe_in_.reset();
  return false;
}

}  // namespace verbena::datapath
