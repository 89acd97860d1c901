// The masked headers that the ICRC covers, and the search for the IPv4 id, which the kernel does
// not show to a receiver.
#include "wire/icrc.h"

namespace verbena::wire {
namespace {

constexpr size_t kOnesBytes = 8;  // in place of the InfiniBand LRH
constexpr size_t kIpv4Bytes = 20;
constexpr size_t kIpv6Bytes = 40;
constexpr size_t kUdpBytes = 8;
constexpr uint8_t kProtocolUdp = 17;
constexpr uint16_t kDontFragment = 0x4000;
constexpr size_t kIpv4IdOffset = 4;
constexpr size_t kIpv4FragmentOffset = 6;

size_t store_udp(std::byte* to, const IcrcFlow& flow, size_t datagram_bytes, uint16_t checksum) {
  store_be16(to, flow.source_port);
  store_be16(to + 2, flow.destination_port);
  store_be16(to + 4, static_cast<uint16_t>(kUdpBytes + datagram_bytes));
  store_be16(to + 6, checksum);
  return kUdpBytes;
}

size_t store_ipv4(std::byte* to, const IcrcFlow& flow, size_t datagram_bytes, uint8_t tos,
                  uint8_t ttl, uint16_t checksum) {
  store_u8(to, 0x45);
  store_u8(to + 1, tos);
  store_be16(to + 2, static_cast<uint16_t>(kIpv4Bytes + kUdpBytes + datagram_bytes));
  store_be16(to + kIpv4IdOffset, 0);
  store_be16(to + kIpv4FragmentOffset, kDontFragment);
  store_u8(to + 8, ttl);
  store_u8(to + 9, kProtocolUdp);
  store_be16(to + 10, checksum);
  std::memcpy(to + 12, flow.source.bytes.data() + 12, 4);
  std::memcpy(to + 16, flow.destination.bytes.data() + 12, 4);
  return kIpv4Bytes;
}

size_t store_ipv6(std::byte* to, const IcrcFlow& flow, size_t datagram_bytes,
                  uint32_t version_class_label, uint8_t hop_limit) {
  store_be32(to, version_class_label);
  store_be16(to + 4, static_cast<uint16_t>(kUdpBytes + datagram_bytes));
  store_u8(to + 6, kProtocolUdp);
  store_u8(to + 7, hop_limit);
  std::memcpy(to + 8, flow.source.bytes.data(), 16);
  std::memcpy(to + 24, flow.destination.bytes.data(), 16);
  return kIpv6Bytes;
}

// The change of the CRC that a difference in two bytes causes, where `tail` bytes follow them.
// Bitwise, so that the table is computed at compile time.
constexpr uint32_t effect_of_two_bytes(uint16_t value, size_t tail) {
  uint32_t crc = static_cast<uint32_t>(value >> 8 | (value & 0xFF) << 8);
  for (size_t bit = 0; bit < (tail + 2) * 8; ++bit) {
    crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
  }
  return crc;
}

// The header bytes that follow the id and the fragment field.
constexpr size_t kTailOfId = kIpv4Bytes + kUdpBytes - kIpv4IdOffset - 2;
constexpr size_t kTailOfFragment = kIpv4Bytes + kUdpBytes - kIpv4FragmentOffset - 2;

constexpr uint32_t kDontFragmentEffect = effect_of_two_bytes(kDontFragment, kTailOfFragment);

}  // namespace

constinit const std::array<uint32_t, kMaxKnownIds> kIcrcIdEffects = [] {
  std::array<uint32_t, kMaxKnownIds> effects{};
  for (uint32_t id = 0; id < kMaxKnownIds; ++id) {
    effects[id] = effect_of_two_bytes(static_cast<uint16_t>(id), kTailOfId);
  }
  return effects;
}();

uint32_t icrc_prefix(const IcrcFlow& flow, size_t datagram_bytes) {
  std::array<std::byte, kOnesBytes + kIpv6Bytes + kUdpBytes> bytes;
  std::memset(bytes.data(), 0xFF, kOnesBytes);
  std::byte* to = bytes.data() + kOnesBytes;
  if (flow.source.is_ipv4()) {
    to += store_ipv4(to, flow, datagram_bytes, 0xFF, 0xFF, 0xFFFF);
  } else {
    to += store_ipv6(to, flow, datagram_bytes, 0x6FFFFFFF, 0xFF);  // all other bits are masked
  }
  to += store_udp(to, flow, datagram_bytes, 0xFFFF);
  return crc32(0, {bytes.data(), to});
}

IcrcMatch IcrcVerifier::check(std::span<std::byte> datagram, uint32_t segment) {
  const uint32_t plain = prefixes_.of(datagram.size());
  const std::span<std::byte> covered = datagram.first(datagram.size() - kIcrcBytes);
  const uint32_t received = load_icrc(datagram.data() + covered.size());
  const bool indexed = ipv4_ && segment < kMaxKnownIds;
  const uint32_t prefix = indexed ? icrc_prefix_with_id(plain, segment) : plain;
  const uint32_t difference = icrc_over_bth(prefix, covered) ^ received;
  if (difference == 0) return IcrcMatch::Known;
  if (!ipv4_) return IcrcMatch::No;

  // The sender may have used another id or cleared the DF bit. The rest of the headers and
  // the datagram follow both fields. The solution for the id is relative to the id assumed above.
  const size_t tail = kTailOfId + covered.size();
  int32_t id = crc32_solve_two_bytes(difference, tail);
  if (id < 0) {
    const uint32_t fragmentable = crc32_advance(kDontFragmentEffect, covered.size());
    id = crc32_solve_two_bytes(difference ^ fragmentable, tail);
  }
  if (id < 0) return IcrcMatch::No;
  const uint32_t actual = static_cast<uint32_t>(id) ^ (indexed ? segment : 0);
  return actual == 0 ? IcrcMatch::Known : IcrcMatch::Solved;
}

size_t store_ip_udp_headers(const IcrcFlow& flow, uint8_t traffic_class, uint8_t hop_limit,
                            size_t datagram_bytes, std::byte* to) {
  if (!flow.source.is_ipv4()) {
    const uint32_t first = 0x60000000u | uint32_t{traffic_class} << 20;
    const size_t ip = store_ipv6(to, flow, datagram_bytes, first, hop_limit);
    return ip + store_udp(to + ip, flow, datagram_bytes, 0);
  }
  store_ipv4(to, flow, datagram_bytes, traffic_class, hop_limit, 0);
  uint32_t sum = 0;
  for (size_t i = 0; i < kIpv4Bytes; i += 2) sum += load_be16(to + i);
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  store_be16(to + 10, static_cast<uint16_t>(~sum));
  return kIpv4Bytes + store_udp(to + kIpv4Bytes, flow, datagram_bytes, 0);
}

}  // namespace verbena::wire
