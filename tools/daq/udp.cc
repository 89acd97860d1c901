// Sockets, clock and signals, by plain system calls.
#include "tools/daq/udp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "daq/board.h"
#include "os/plain_socket.h"

namespace verbena::daqtool {
namespace {

constexpr size_t kLargestDatagram = 65536;

volatile std::sig_atomic_t signal_came = 0;

sockaddr_in address_of(uint32_t ip, uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(ip);
  return a;
}

}  // namespace

std::string with_errno(const std::string& what) { return what + ": " + std::strerror(errno); }

void print_line(std::FILE* to, const std::string& text) noexcept {
  const bool written = std::fputs((text + '\n').c_str(), to) >= 0 && std::fflush(to) == 0;
  if (!written && to == stdout) signal_came = 1;
}

Instant now() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return {int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

uint32_t source_address_to(uint32_t peer) {
  const os::UniqueFd fd = os::plain_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC);
  sockaddr_in a = address_of(peer, daq::kBoardPort);
  socklen_t bytes = sizeof a;
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&a), sizeof a) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&a), &bytes) != 0) {
    throw ToolError(with_errno("no route to " + daq::print_ip(peer)));
  }
  return ntohl(a.sin_addr.s_addr);
}

UdpSocket::UdpSocket(uint32_t ip, uint16_t port)
    : fd_(os::plain_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK)),
      buffer_(kLargestDatagram) {
  const sockaddr_in a = address_of(ip, port);
  if (!fd_.valid() || ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0) {
    throw ToolError(
        with_errno("cannot bind UDP port " + std::to_string(port) + " of " + daq::print_ip(ip)));
  }
}

std::optional<UdpSocket::Datagram> UdpSocket::receive() {
  sockaddr_in from{};
  socklen_t bytes = sizeof from;
  const ssize_t n = ::recvfrom(fd_.get(), buffer_.data(), buffer_.size(), 0,
                               reinterpret_cast<sockaddr*>(&from), &bytes);
  if (n < 0) return std::nullopt;
  return Datagram{std::span(buffer_).first(static_cast<size_t>(n)), ntohl(from.sin_addr.s_addr),
                  ntohs(from.sin_port)};
}

// A failed send counts as a lost packet: requests are retransmitted.
void UdpSocket::send(uint32_t ip, uint16_t port, std::span<const std::byte> bytes) {
  const sockaddr_in a = address_of(ip, port);
  ::sendto(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&a), sizeof a);
}

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { signal_came = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // print_line() detects the error
}

bool interrupted() { return signal_came != 0; }

}  // namespace verbena::daqtool
