// Sockets and messages of calls.
#include "datapath/shm/hello.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "datapath/shm/segment.h"
#include "wire/packet_io.h"

namespace verbena::datapath {
namespace {

// In the socket's name and in the first message: others are not found, and refused if they are.
constexpr uint16_t kProtocolVersion = 4;

// What the caller sends first, and gets back when it is accepted. It never leaves the host.
struct Hello {
  std::array<char, 4> magic{'V', 'B', 'S', 'M'};
  uint16_t version = kProtocolVersion;
  uint8_t slot = 0;               // the sender's
  uint8_t wire_packets_only = 0;  // a peer that does not know it refuses the link
  uint32_t ring_bytes = kRingBytes;
  uint32_t payload_bytes = wire::kMaxPayloadBytes;
  bool operator==(const Hello&) const = default;
};

}  // namespace

os::UnixAddress shm_address(uint8_t slot) {
  return os::UnixAddress::abstract("verbena/shm/%u/%u", kProtocolVersion, slot);
}

os::UniqueFd open_shm_socket() {
  return os::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

pid_t peer_process(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 ? peer.pid : 0;
}

bool hung_up(int fd) {
  pollfd p{.fd = fd, .events = POLLRDHUP, .revents = 0};
  const timespec at_once{};
  return ::ppoll(&p, 1, &at_once, nullptr) == 1;
}

bool send_hello(int fd, const Greeting& greeting, int exposure, int segment) {
  Hello hello;
  hello.slot = greeting.slot;
  hello.wire_packets_only = greeting.wire_packets_only ? 1 : 0;
  iovec part{&hello, sizeof hello};
  const std::array<int, 2> descriptors{exposure, segment};
  const size_t bytes = (segment >= 0 ? 2 : 1) * sizeof(int);
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof descriptors)> control{};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  if (exposure >= 0) {
    m.msg_control = control.data();
    m.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* const c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(c), descriptors.data(), bytes);
  }
  return ::sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof hello;
}

HelloRead receive_hello(int fd, Greeting& greeting, Descriptors& descriptors) {
  Hello hello;
  iovec part{&hello, sizeof hello};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = control.data();
  m.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR ? HelloRead::NotYet : HelloRead::Unusable;
  }
  const cmsghdr* const c = CMSG_FIRSTHDR(&m);
  if (c != nullptr && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
    std::array<int, 2> received{-1, -1};
    const size_t bytes = c->cmsg_len - CMSG_LEN(0);
    std::memcpy(received.data(), CMSG_DATA(c), std::min(bytes, sizeof received));
    descriptors = {os::UniqueFd(received[0]), os::UniqueFd(received[1])};
  }
  greeting = {.slot = hello.slot, .wire_packets_only = hello.wire_packets_only == 1};
  Hello wanted;
  wanted.slot = hello.slot;
  wanted.wire_packets_only = hello.wire_packets_only & 1;
  return n == sizeof hello && hello == wanted ? HelloRead::Hello : HelloRead::Unusable;
}

}  // namespace verbena::datapath
