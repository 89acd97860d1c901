// Sockets and messages of the handshake.
#include "datapath/shm/handshake.h"

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

// Part of the socket's name and of the message, so processes of different versions do not connect.
constexpr uint16_t kProtocolVersion = 4;

// Sent by the connecting process, and by the accepting one in reply. It never leaves the host.
struct Message {
  std::array<char, 4> magic{'V', 'B', 'S', 'M'};
  uint16_t version = kProtocolVersion;
  uint8_t slot = 0;               // the sender's
  uint8_t wire_packets_only = 0;  // a peer that does not know this field rejects the link
  uint32_t ring_bytes = kRingBytes;
  uint32_t payload_bytes = wire::kMaxPayloadBytes;
  bool operator==(const Message&) const = default;
};

}  // namespace

os::UnixAddress shm_address(uint8_t slot) {
  return os::UnixAddress::abstract("verbena/shm/%u/%u", kProtocolVersion, slot);
}

os::UniqueFd open_shm_socket() {
  return os::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

pid_t peer_pid(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 ? peer.pid : 0;
}

bool is_hung_up(int fd) {
  pollfd p{.fd = fd, .events = POLLRDHUP, .revents = 0};
  const timespec no_wait{};
  return ::ppoll(&p, 1, &no_wait, nullptr) == 1;
}

bool send_handshake(int fd, const HandshakeInfo& info, int exposure, int segment) {
  Message message;
  message.slot = info.slot;
  message.wire_packets_only = info.wire_packets_only ? 1 : 0;
  iovec part{&message, sizeof message};
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
  return ::sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof message;
}

HandshakeRead receive_handshake(int fd, HandshakeInfo& info, Descriptors& descriptors) {
  Message message;
  iovec part{&message, sizeof message};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = control.data();
  m.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR ? HandshakeRead::NotYet : HandshakeRead::Unusable;
  }
  const cmsghdr* const c = CMSG_FIRSTHDR(&m);
  if (c != nullptr && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
    std::array<int, 2> received{-1, -1};
    const size_t bytes = c->cmsg_len - CMSG_LEN(0);
    std::memcpy(received.data(), CMSG_DATA(c), std::min(bytes, sizeof received));
    descriptors = {os::UniqueFd(received[0]), os::UniqueFd(received[1])};
  }
  info = {.slot = message.slot, .wire_packets_only = message.wire_packets_only == 1};
  Message expected;
  expected.slot = message.slot;
  expected.wire_packets_only = message.wire_packets_only & 1;
  return n == sizeof message && message == expected ? HandshakeRead::Received
                                                    : HandshakeRead::Unusable;
}

}  // namespace verbena::datapath
