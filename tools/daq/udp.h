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

// Something went wrong; what() tells a person.
struct Trouble : std::runtime_error {
  using runtime_error::runtime_error;
};
std::string with_errno(const std::string& what);

// A line for people. Without standard error, work goes on all the same; standard output that takes
// no more is an interruption.
void print_line(std::FILE* to, const std::string& text) noexcept;

Instant now();

// The address of this host from which `peer` is reached.
uint32_t source_address_to(uint32_t peer);

// A UDP socket of an address and port of this host, which nobody else has. It never blocks.
class UdpSocket {
 public:
  UdpSocket(uint32_t ip, uint16_t port);

  struct Datagram {
    std::span<std::byte> bytes;  // until the next call
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

// Ctrl-C and termination end a command in good order.
void catch_signals();
bool interrupted();

}  // namespace verbena::daqtool
