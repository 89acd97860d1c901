// PlaceCheck: whether the kernel gives this process what is its own. Another process may have
// attached a steering program that knows less than the one before; then we are missing in it, and
// nobody tells. So we send ourselves what a peer would: a packet to our slot, and a request for a
// service we listen to. They carry no ICRC and an opcode that no packet has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "host/local_address.h"

namespace verbena::host {

class PlaceCheck {
 public:
  // `service`: the lower half of its id, if there is one to ask for.
  void send(int fd, const SocketAddress& to, uint8_t slot, std::optional<uint32_t> service);
  // Whether a datagram is one of these, ours or another process's.
  bool take(std::span<const std::byte> datagram, uint8_t slot);
  bool passed() const { return missing_ == 0; }

 private:
  enum class About : uint8_t { Slot = 1, Service = 2 };
  static constexpr size_t kBytes = 64;
  using Packet = std::array<std::byte, kBytes>;

  static Packet make(About about, uint8_t slot, uint32_t number, uint32_t service);

  uint32_t number_ = 0;  // of this check: what came late belongs to none
  uint8_t missing_ = 0;  // About, or'ed
};

}  // namespace verbena::host
