// The invariant CRC of RoCEv2 (IBA annex A17.3): CRC-32 over eight bytes of ones, the IP and UDP
// headers, and everything from the BTH on, with all fields that may change on the way taken as
// ones. A UDP socket neither writes nor sees the IP header; what is here works from what it knows
// of it.
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
inline constexpr size_t kBthReservedOffset =
    4;                                         // resv8a: FECN, BECN and six bits a switch may write
inline constexpr uint32_t kMaxKnownIds = 128;  // the most segments the kernel cuts a send into

// One direction of one flow: what the ICRC covers of the headers in front of the BTH.
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

// Remembers the prefixes of the few sizes that a flow uses in turn: full packets, replies,
// acknowledgements.
class IcrcPrefixes {
 public:
  explicit IcrcPrefixes(const IcrcFlow& flow) : flow_(flow) {}
  const IcrcFlow& flow() const { return flow_; }

  uint32_t of(size_t datagram_bytes) {
    Entry& entry = entries_[datagram_bytes / 4 % entries_.size()];  // packets are padded to fours
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

// The same with another IPv4 id: the CRC is linear, so an id is a constant to add.
extern const std::array<uint32_t, kMaxKnownIds> kIcrcIdEffects;
inline uint32_t icrc_prefix_with_id(uint32_t prefix, uint32_t id) {
  return prefix ^ kIcrcIdEffects[id];
}

// Continues a prefix over a BTH and what follows it. `bth` (at least 12 bytes) is written to for a
// moment, so it must be memory of ours.
inline uint32_t icrc_over_bth(uint32_t prefix, std::span<std::byte> bth) {
  const std::byte reserved = bth[kBthReservedOffset];
  bth[kBthReservedOffset] = std::byte{0xFF};
  const uint32_t crc = crc32(prefix, bth);
  bth[kBthReservedOffset] = reserved;
  return crc;
}

// The ICRC is the one little-endian number on the wire.
inline void store_icrc(std::byte* to, uint32_t icrc) { std::memcpy(to, &icrc, sizeof icrc); }
inline uint32_t load_icrc(const std::byte* from) {
  uint32_t icrc;
  std::memcpy(&icrc, from, sizeof icrc);
  return icrc;
}

// How a received packet's ICRC was explained.
enum class IcrcMatch : uint8_t {
  No,
  Known,   // with the id a Verbena sender writes: 0 or the segment's index
  Solved,  // with some other IPv4 id, so only half of the 32 bits were a check
};

// Checks received datagrams of one flow.
class IcrcVerifier {
 public:
  explicit IcrcVerifier(const IcrcFlow& flow) : prefixes_(flow), ipv4_(flow.source.is_ipv4()) {}
  const IcrcFlow& flow() const { return prefixes_.flow(); }

  // `datagram` runs from the BTH to the ICRC, at least 16 bytes, and is written to for a moment.
  // `segment` is its place in the train it arrived in.
  IcrcMatch check(std::span<std::byte> datagram, uint32_t segment);

 private:
  IcrcPrefixes prefixes_;
  bool ipv4_;
};

// Writes IP and UDP headers as a Verbena sender's kernel would (DF, id 0, checksums right for
// IPv4's header and zero for UDP) for tools that need whole packets. Returns 28 or 48; `to` has 48
// bytes.
size_t store_ip_udp_headers(const IcrcFlow& flow, uint8_t traffic_class, uint8_t hop_limit,
                            size_t datagram_bytes, std::byte* to);

}  // namespace verbena::wire
