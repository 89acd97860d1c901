// What becomes of a UDP datagram on its way to a host, as far as a program without privileges can
// tell: a port where nobody receives is answered by ICMP, which proves that the datagram arrived.
#pragma once

#include <cstdint>
#include <string>

#include "base/time.h"
#include "host/slot_directory.h"

namespace verbena::tool {

struct ProbeAnswer {
  enum class Kind : uint8_t {
    Silence,
    Refused,      // it arrived, and nobody receives on that port
    TooLarge,     // for a hop that carries `mtu` bytes
    Prohibited,   // a firewall on the way says no
    Unreachable,  // no such network or host
    Forbidden,    // this machine's own firewall did not let it out
  };
  Kind kind = Kind::Silence;
  uint32_t mtu = 0;
  std::string who;  // answered; empty: this machine's kernel
  Duration took;
};

struct Way {
  host::LocalAddress from;
  host::LocalAddress to;
};

// Sends datagrams that make IP packets of so many bytes, never fragmented, until one is answered.
ProbeAnswer probe(const Way& way, uint16_t port, uint32_t packet_bytes, Duration patience);

// A port on which hardly anybody receives.
uint16_t closed_port();

struct PathMtu {
  uint32_t bytes = 0;      // the largest IP packet that arrived; 0: none was answered
  uint32_t swallowed = 0;  // a larger one that vanished although nobody called it too large
};
PathMtu find_path_mtu(const Way& way, uint32_t interface_index);

}  // namespace verbena::tool
