// Sends any messages to the socket of a slot, as every process of the same user can: the messages
// delivered are bounded and complete, and datagrams that are not Verbena's have no effect.
//
// The input is a list of messages: a byte for the kind, two for the length, then the bytes. Most
// start with a valid header.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "host/slot_directory.h"

namespace {

using namespace verbena;
using namespace verbena;

constexpr size_t kHeaderBytes = 8;
constexpr size_t kMaxBytes = 4096;
const host::LocalAddress kAddress{wire::Gid::from_ipv4("\x7F\x00\x00\x01"), 0};

// One directory for all inputs; its socket is found by its name, as another process finds it.
struct Target {
  Target() {
    auto claimed = host::SlotDirectory::claim([] { return std::string("counters"); });
    VERBENA_CHECK(claimed.ok());
    directory = std::move(claimed.value());
    mailbox = std::make_unique<host::Mailbox>(*directory);
    mailbox->add_address(kAddress);
    name.bytes = sizeof name.sun;
    VERBENA_CHECK(
        ::getsockname(directory->fd(), reinterpret_cast<sockaddr*>(&name.sun), &name.bytes) == 0);
    socket = os::UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    VERBENA_CHECK(socket.valid());
  }

  void send(std::span<const std::byte> bytes) {
    (void)::sendto(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT, name.get(), name.bytes);
  }

  std::unique_ptr<host::SlotDirectory> directory;
  std::unique_ptr<host::Mailbox> mailbox;
  os::UnixAddress name;
  os::UniqueFd socket;
};

void check(const std::vector<host::MisroutedPackets>& misrouted,
           const std::vector<host::MemberReport>& reports) {
  static volatile uint64_t sum;  // every value is used, so that the sanitizers check it
  for (const host::MisroutedPackets& s : misrouted) {
    VERBENA_CHECK(s.stride > 0 && !s.bytes.empty() && s.bytes.size() <= kMaxBytes);
    sum = sum + (s.meta.own ? 1 : 0);
    sum = sum + (s.meta.forwarded ? 1 : 0);
    for (const std::byte b : s.bytes) sum = sum + std::to_integer<uint64_t>(b);
  }
  for (const host::MemberReport& r : reports) {
    VERBENA_CHECK(r.address == kAddress && r.services.size() <= host::kMaxServicesInReport);
    for (const uint32_t service : r.services) sum = sum + service;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Target target;
  size_t at = 0;
  const auto byte = [&] { return at < size ? data[at++] : uint8_t{0}; };
  for (int messages = 0; messages < 16 && at < size; ++messages) {
    const uint8_t kind = byte();
    const size_t length = std::min<size_t>((size_t{byte()} << 8 | byte()) % kMaxBytes, size - at);
    std::vector<std::byte> message(length);
    for (std::byte& b : message) b = std::byte{byte()};
    if (kind % 8 != 0 && length >= kHeaderBytes) {
      const std::array<uint8_t, 4> header{'V', 'B', 2, static_cast<uint8_t>(kind % 6)};
      std::ranges::transform(header, message.begin(), [](uint8_t b) { return std::byte{b}; });
      // In both kinds with an address, the address follows the header.
      const auto address = std::as_bytes(std::span(&kAddress, 1));
      if (kind & 0x80 && length >= kHeaderBytes + address.size()) {
        std::ranges::copy(address, message.begin() + kHeaderBytes);
      }
    }
    target.send(message);
    target.directory->poll(target.mailbox.get());
  }
  std::vector<host::MisroutedPackets> misrouted;
  std::vector<host::MemberReport> reports;
  target.mailbox->take(misrouted, reports);
  check(misrouted, reports);
  return 0;
}
