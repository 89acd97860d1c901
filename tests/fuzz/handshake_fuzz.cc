// Any first message on the socket of a shared-memory link, with any number of descriptors: it is
// accepted as a handshake or rejected, and memory that is not a link's is rejected. No descriptor
// stays open.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "datapath/shm/handshake.h"
#include "datapath/shm/segment.h"

namespace {

using namespace verbena;
using namespace verbena::datapath;

constexpr size_t kMaxDescriptors = 4;

// A handshake message in the format of send_handshake().
std::vector<std::byte> valid_handshake(int exposure) {
  int ends[2];
  VERBENA_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const os::UniqueFd from(ends[0]), to(ends[1]);
  VERBENA_CHECK(send_handshake(from.get(), {.slot = 7}, exposure, -1));
  std::vector<std::byte> bytes(256);
  const ssize_t n = ::recv(to.get(), bytes.data(), bytes.size(), 0);
  VERBENA_CHECK(n > 0);
  bytes.resize(static_cast<size_t>(n));
  return bytes;
}

void send(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  if (!descriptors.empty()) {
    m.msg_control = control.data();
    m.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size_bytes());
  }
  (void)::sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int lowest_free_descriptor() {
  const os::UniqueFd probe(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  return probe.get();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int memory = ::memfd_create("handshake_fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  static const std::vector<std::byte> valid = valid_handshake(memory);
  const uint8_t how = size > 0 ? data[0] : 0;
  // Either any bytes, or a handshake message with a few bytes changed: pairs of offset and value.
  std::vector<std::byte> bytes(size > 1 ? size - 1 : 0);
  std::transform(data + (size > 0), data + size, bytes.begin(),
                 [](uint8_t b) { return std::byte{b}; });
  if (how & 1) {
    std::vector<std::byte> changed = valid;
    for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
      changed[std::to_integer<size_t>(bytes[i]) % changed.size()] = bytes[i + 1];
    }
    bytes = std::move(changed);
  }
  const size_t count = (how >> 1) % (kMaxDescriptors + 1);
  std::array<int, kMaxDescriptors> descriptors{};
  descriptors.fill(how & 0x80 ? 0 : memory);

  const int before = lowest_free_descriptor();
  {
    int ends[2];
    VERBENA_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    const os::UniqueFd from(ends[0]), to(ends[1]);
    send(from.get(), bytes, std::span(descriptors).first(count));
    HandshakeInfo info;
    Descriptors received;
    const HandshakeRead read = receive_handshake(to.get(), info, received);
    if (how & 1 && bytes == valid) VERBENA_CHECK(read == HandshakeRead::Received && info.slot == 7);
    if (read == HandshakeRead::Received) VERBENA_CHECK(bytes.size() == valid.size());
    if (received.segment.valid()) VERBENA_CHECK(!Segment::adopt(received.segment.get()).ok());
  }
  VERBENA_CHECK(lowest_free_descriptor() == before);
  return 0;
}
