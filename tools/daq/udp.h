// The sockets and the clock of the detector readout commands.
#pragma once

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/time.h"
#include "daq/message.h"
#include "os/unique_fd.h"

namespace verbena::daqtool {

// A failure that ends the command; what() is the sentence for the user.
struct ToolError : std::runtime_error {
  using runtime_error::runtime_error;
};
std::string with_errno(const std::string& what);

// Prints one line. A failure of standard error is ignored; a failure of standard output interrupts
// the command.
void print_line(std::FILE* to, const std::string& text) noexcept;

Instant now();
inline constexpr Duration kHousekeepingInterval = milliseconds(1);

// The address of this host that the kernel uses to reach `peer`.
uint32_t source_address_to(uint32_t peer);

// A non-blocking UDP socket with exclusive use of an address and port of this host.
class UdpSocket {
 public:
  UdpSocket(uint32_t ip, uint16_t port);

  struct Datagram {
    std::span<std::byte> bytes;  // valid until the next call
    uint32_t source_ip = 0;
    uint16_t source_port = 0;
  };
  std::optional<Datagram> receive();
  void send(uint32_t ip, uint16_t port, std::span<const std::byte> bytes);
  int fd() const { return fd_.get(); }

 private:
  os::UniqueFd fd_;
  std::vector<std::byte> buffer_;
};

// SIGINT, SIGTERM and SIGHUP end a command after its cleanup and summary.
void catch_signals();
bool interrupted();

}  // namespace verbena::daqtool
