// IndexCheck: checks that the kernel delivers this process's packets to it. Another process may
// have attached a steering program that lacks our group index, and the kernel does not report that.
// The check sends the packets that a peer would send: one to our slot, and a request for a service
// that we listen to. They have no ICRC and an opcode that no other packet has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "host/local_address.h"

namespace verbena::host {

class IndexCheck {
 public:
  // `service`: the lower half of the ID of a service to check, if there is one.
  void send(int fd, const SocketAddress& to, uint8_t slot, std::optional<uint32_t> service);
  // Whether a datagram is a check packet, from this process or another one.
  bool take(std::span<const std::byte> datagram, uint8_t slot);
  bool passed() const { return missing_ == 0; }

 private:
  enum class About : uint8_t { Slot = 1, Service = 2 };
  static constexpr size_t kBytes = 64;
  using Packet = std::array<std::byte, kBytes>;

  static Packet make(About about, uint8_t slot, uint32_t number, uint32_t service);

  uint32_t number_ = 0;  // of the current check; packets of earlier checks are ignored
  uint8_t missing_ = 0;  // bit set of About
};

}  // namespace verbena::host
