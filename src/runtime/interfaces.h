// The network interfaces of this namespace, read over netlink. Unlike getifaddrs(), netlink reports
// which addresses are not usable yet. Needs no privileges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/identifiers.h"

namespace verbena::runtime {

struct InterfaceAddress {
  wire::Gid gid;
  bool tentative = false;  // IPv6: duplicate address detection is running
  bool duplicate = false;  // IPv6: another host has the address
};

struct Interface {
  std::string name;
  uint32_t index = 0;
  uint32_t flags = 0;  // IFF_*
  uint32_t mtu = 0;
  std::vector<uint8_t> hardware_address;  // 6 bytes for Ethernet; may be empty
  std::vector<InterfaceAddress> addresses;
};

// All interfaces by index, or only the one asked for. `error` is 0 or the errno of the failed
// query.
struct Interfaces {
  std::vector<Interface> all;
  int error = 0;
};
Interfaces read_interfaces(uint32_t only_index = 0);

}  // namespace verbena::runtime
