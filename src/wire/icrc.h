// The invariant CRC of RoCEv2 (IBA annex A17.3): a CRC-32 over eight bytes of ones, the IP and UDP
// headers, and everything from the BTH on. Fields that may change on the way count as ones. A UDP
// socket neither writes nor sees the IP header, so the functions here rebuild it from the flow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/crc32.h"
#include "wire/identifiers.h"
#include "wire/opcode.h"

namespace verbena::wire {

inline constexpr uint16_t kRoceUdpPort = 4791;
// resv8a: FECN, BECN and six bits that a switch may change.
inline constexpr size_t kBthReservedOffset = 4;
// The maximum number of GSO segments in one send.
inline constexpr uint32_t kMaxKnownIds = 128;

// One direction of one flow: the header fields in front of the BTH that the ICRC covers.
struct IcrcFlow {
  Gid source;  // both IPv4-mapped, or both IPv6
  Gid destination;
  uint16_t source_port = 0;
  uint16_t destination_port = kRoceUdpPort;
  bool operator==(const IcrcFlow&) const = default;
};

// The CRC over everything in front of the BTH, for one flow and datagram size. IPv4: DF set, id 0.
// `datagram_bytes` is the UDP payload: BTH to ICRC.
uint32_t icrc_prefix(const IcrcFlow& flow, size_t datagram_bytes);

// Caches the prefixes of the few datagram sizes that a flow uses: full packets, short messages,
// ACKs.
class IcrcPrefixes {
 public:
  explicit IcrcPrefixes(const IcrcFlow& flow) : flow_(flow) {}
  const IcrcFlow& flow() const { return flow_; }

  uint32_t of(size_t datagram_bytes) {
    Entry& entry = entries_[datagram_bytes / 4 % entries_.size()];  // sizes are multiples of 4
    if (entry.datagram_bytes != datagram_bytes) {
      entry = {datagram_bytes, icrc_prefix(flow_, datagram_bytes)};
    }
    return entry.prefix;
  }

 private:
  struct Entry {
    size_t datagram_bytes = 0;
    uint32_t prefix = 0;
  };
  IcrcFlow flow_;
  std::array<Entry, 8> entries_{};
};

// The prefix for another IPv4 id. The CRC is linear, so each id adds (xors) a constant.
extern const std::array<uint32_t, kMaxKnownIds> kIcrcIdEffects;
inline uint32_t icrc_prefix_with_id(uint32_t prefix, uint32_t id) {
  return prefix ^ kIcrcIdEffects[id];
}

// Continues a prefix over a BTH and the bytes behind it. `bth` (at least 12 bytes) may be modified
// and restored, so it must lie in Verbena's own memory.
inline uint32_t icrc_over_bth(uint32_t prefix, std::span<std::byte> bth) {
  return crc32_with_ones(prefix, bth, kBthReservedOffset);
}

// The ICRC is the only little-endian number on the wire.
inline void store_icrc(std::byte* to, uint32_t icrc) { std::memcpy(to, &icrc, sizeof icrc); }
inline uint32_t load_icrc(const std::byte* from) {
  uint32_t icrc;
  std::memcpy(&icrc, from, sizeof icrc);
  return icrc;
}

// Whether the ICRC of a received packet is correct, and for which IPv4 id.
enum class IcrcMatch : uint8_t {
  No,
  Known,   // with the id of a Verbena sender: 0 or the segment's index
  Solved,  // with another IPv4 id; the solved id uses up 16 of the 32 check bits
};

// Checks received datagrams of one flow.
class IcrcVerifier {
 public:
  explicit IcrcVerifier(const IcrcFlow& flow) : prefixes_(flow), ipv4_(flow.source.is_ipv4()) {}
  const IcrcFlow& flow() const { return prefixes_.flow(); }

  // `datagram` runs from the BTH to the ICRC, has at least 16 bytes, and is modified and restored.
  // `segment` is its index in the GRO batch.
  IcrcMatch check(std::span<std::byte> datagram, uint32_t segment);

 private:
  IcrcPrefixes prefixes_;
  bool ipv4_;
};

// Writes IP and UDP headers as the kernel of a Verbena sender does (DF, id 0, correct IPv4 header
// checksum, no UDP checksum), for tools that need whole packets. Returns 28 or 48; `to` has 48
// bytes.
size_t store_ip_udp_headers(const IcrcFlow& flow, uint8_t traffic_class, uint8_t hop_limit,
                            size_t datagram_bytes, std::byte* to);

}  // namespace verbena::wire
