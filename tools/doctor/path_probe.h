// Finds out what happens to a UDP datagram on its path to a host, without privileges. A host
// reports a closed port by ICMP, which proves that the datagram arrived.
#pragma once

#include <cstdint>
#include <string>

#include "base/time.h"
#include "host/slot_directory.h"

namespace verbena::tool {

struct ProbeResult {
  enum class Kind : uint8_t {
    Silence,
    Refused,      // it arrived, and the port is closed
    TooLarge,     // a hop has the MTU `mtu`
    Prohibited,   // a firewall on the path rejected it
    Unreachable,  // no such network or host
    Forbidden,    // this machine's own firewall blocked it
  };
  Kind kind = Kind::Silence;
  uint32_t mtu = 0;
  std::string sender;  // of the ICMP error; empty: this machine's kernel
  Duration took;
};

struct Path {
  host::LocalAddress from;
  host::LocalAddress to;
};

// Sends datagrams in unfragmented IP packets of `packet_bytes` bytes until an error arrives or the
// time is up.
ProbeResult probe(const Path& path, uint16_t port, uint32_t packet_bytes, Duration timeout);

// A port that is very probably closed.
uint16_t closed_port();

struct PathMtu {
  uint32_t bytes = 0;       // the largest IP packet that arrived; 0: no response to any
  uint32_t lost_bytes = 0;  // size of a larger packet that was lost without an ICMP error; 0: none
};
PathMtu find_path_mtu(const Path& path, uint32_t interface_index);

}  // namespace verbena::tool
