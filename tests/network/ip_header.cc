// IPv4 and IPv6 headers, read and written byte by byte.
#include "tests/network/ip_header.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>

namespace verbena::network {
namespace {

constexpr size_t kIpv4Header = 20, kIpv6Header = 40;
constexpr uint8_t kCongestionExperienced = 3;  // RFC 3168

int version_of(std::span<const uint8_t> packet) {
  if (packet.size() >= kIpv4Header && packet[0] >> 4 == 4) return 4;
  if (packet.size() >= kIpv6Header && packet[0] >> 4 == 6) return 6;
  return 0;
}

uint16_t load16(std::span<const uint8_t> packet, size_t at) {
  return static_cast<uint16_t>(packet[at] << 8 | packet[at + 1]);
}

bool is_ect(int ecn) { return ecn == 1 || ecn == 2; }

// RFC 1624: the checksum after one 16-bit word of the header has changed.
uint16_t mended_checksum(uint16_t checksum, uint16_t before, uint16_t after) {
  uint32_t sum = static_cast<uint16_t>(~checksum);
  sum += static_cast<uint16_t>(~before);
  sum += after;
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

}  // namespace

bool mark_congestion(std::span<uint8_t> packet) {
  const int version = version_of(packet);
  if (version == 4 && is_ect(packet[1] & 3)) {
    const uint16_t before = load16(packet, 0);
    packet[1] |= kCongestionExperienced;
    const uint16_t checksum = mended_checksum(load16(packet, 10), before, load16(packet, 0));
    packet[10] = static_cast<uint8_t>(checksum >> 8);
    packet[11] = static_cast<uint8_t>(checksum);
    return true;
  }
  if (version == 6 && is_ect(packet[1] >> 4 & 3)) {  // the traffic class starts at bit 4
    packet[1] |= kCongestionExperienced << 4;
    return true;
  }
  return false;
}

Flow flow_of(std::span<const uint8_t> packet) {
  Flow flow;
  size_t transport = 0;
  const int version = version_of(packet);
  if (version == 4) {
    flow.protocol = packet[9];
    flow.source[10] = flow.source[11] = 0xFF;
    std::copy_n(packet.begin() + 12, 4, flow.source.begin() + 12);
    const bool is_later_fragment = (load16(packet, 6) & 0x1FFF) != 0;
    if (!is_later_fragment) transport = static_cast<size_t>(packet[0] & 0xF) * 4;
  } else if (version == 6) {
    flow.protocol = packet[6];
    std::copy_n(packet.begin() + 8, 16, flow.source.begin());
    transport = kIpv6Header;
  }
  const bool has_ports = flow.protocol == IPPROTO_TCP || flow.protocol == IPPROTO_UDP;
  if (has_ports && transport != 0 && transport + 2 <= packet.size())
    flow.port = load16(packet, transport);
  return flow;
}

std::string protocol_name(uint8_t protocol) {
  if (protocol == IPPROTO_TCP) return "tcp";
  if (protocol == IPPROTO_UDP) return "udp";
  return std::to_string(protocol);
}

std::string source_text(const Flow& flow) {
  char text[INET6_ADDRSTRLEN] = "";
  in6_addr address;
  std::copy(flow.source.begin(), flow.source.end(), address.s6_addr);
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, flow.source.data() + 12, text, sizeof text);
    return std::string(text) + ":" + std::to_string(flow.port);
  }
  inet_ntop(AF_INET6, flow.source.data(), text, sizeof text);
  return "[" + std::string(text) + "]:" + std::to_string(flow.port);
}

}  // namespace verbena::network
