// IP addresses and ports in CM messages: the IP addressing annex (IBA A11). The service ID contains
// the port. The private data of REQ and SIDR_REQ begins with the addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/bytes.h"
#include "wire/identifiers.h"

namespace verbena::cm {

// The values of enum rdma_port_space.
enum class PortSpace : uint16_t { Ipoib = 0x0002, Tcp = 0x0106, Udp = 0x0111, Ib = 0x013F };

constexpr uint64_t service_id(PortSpace space, uint16_t port) {
  return uint64_t{static_cast<uint16_t>(space)} << 16 | port;
}
constexpr uint16_t port_of(uint64_t service_id) { return static_cast<uint16_t>(service_id); }
// None if the service ID is not that of an IP port.
constexpr std::optional<PortSpace> port_space_of(uint64_t service_id) {
  for (const PortSpace space : {PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib}) {
    if (service_id >> 16 == static_cast<uint16_t>(space)) return space;
  }
  return std::nullopt;
}

// 36 bytes: 0 version, major:4 minor:4 | 1 IP version:4 resv:4 | 2 source port | 4 source address |
// 20 destination address. An IPv4 address is the last four of its 16 bytes, the others are zero.
// This struct holds both as GIDs, IPv4 mapped.
struct IpHeader {
  static constexpr size_t kBytes = 36;

  uint16_t source_port = 0;
  wire::Gid source;
  wire::Gid destination;

  // None if the major version is not 0, or the IP version is neither 4 nor 6. Minor versions are
  // compatible.
  static std::optional<IpHeader> load(const std::byte* p) {
    const uint8_t ip_version = load_u8(p + 1) >> 4;
    if (load_u8(p) >> 4 != 0 || (ip_version != 4 && ip_version != 6)) return std::nullopt;
    const auto address = [ip_version](const std::byte* at) {
      return ip_version == 4 ? wire::Gid::from_ipv4(at + 12) : wire::Gid::from_ipv6(at);
    };
    return IpHeader{load_be16(p + 2), address(p + 4), address(p + 20)};
  }
  void store(std::byte* p) const {
    const bool ipv4 = destination.is_ipv4();
    const auto address = [ipv4](std::byte* at, const wire::Gid& gid) {
      std::memset(at, 0, 12);
      const size_t skip = ipv4 ? 12 : 0;
      std::memcpy(at + skip, gid.bytes.data() + skip, 16 - skip);
    };
    store_u8(p, 0);
    store_u8(p + 1, ipv4 ? 0x40 : 0x60);
    store_be16(p + 2, source_port);
    address(p + 4, source);
    address(p + 20, destination);
  }
};

}  // namespace verbena::cm
