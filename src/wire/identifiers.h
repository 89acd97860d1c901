// Identifiers on the wire: queue pair numbers, global identifiers (GIDs), path MTU.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace verbena::wire {

// A 24-bit queue pair number. The top byte of a Verbena QPN is the slot of the owning process.
class Qpn {
 public:
  constexpr Qpn() = default;
  explicit constexpr Qpn(uint32_t value) : value_(value & 0xFFFFFF) {}
  constexpr uint32_t value() const { return value_; }
  constexpr uint8_t slot() const { return static_cast<uint8_t>(value_ >> 16); }
  constexpr uint32_t index() const { return value_ & 0xFFFF; }
  static constexpr Qpn of_slot(uint8_t slot, uint32_t index) {
    return Qpn(uint32_t{slot} << 16 | (index & 0xFFFF));
  }
  constexpr bool operator==(const Qpn&) const = default;

 private:
  uint32_t value_ = 0;
};

inline constexpr Qpn kMulticastQpn{0xFFFFFF};
// The source and destination of all management datagrams (MADs).
inline constexpr Qpn kManagementQpn{1};

// A RoCEv2 GID is an IP address: IPv6 as it is, IPv4 mapped (::ffff:a.b.c.d).
struct Gid {
  std::array<std::byte, 16> bytes{};
  constexpr auto operator<=>(const Gid&) const = default;
  // Every packet needs this: memcmp compares two words, the default compares byte by byte.
  bool operator==(const Gid& other) const {
    return std::memcmp(bytes.data(), other.bytes.data(), sizeof bytes) == 0;
  }

  bool is_ipv4() const {
    static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    return std::memcmp(bytes.data(), kMapped, sizeof kMapped) == 0;
  }
  bool is_zero() const { return *this == Gid{}; }
  bool is_link_local() const {
    return bytes[0] == std::byte{0xFE} && (bytes[1] & std::byte{0xC0}) == std::byte{0x80};
  }
  bool is_multicast() const {
    return is_ipv4() ? (bytes[12] & std::byte{0xF0}) == std::byte{0xE0}
                     : bytes[0] == std::byte{0xFF};
  }
  // `address` points at 4 network-order bytes.
  static Gid from_ipv4(const void* address) {
    Gid gid;
    gid.bytes[10] = gid.bytes[11] = std::byte{0xFF};
    std::memcpy(gid.bytes.data() + 12, address, 4);
    return gid;
  }
  // `address` points at 16 network-order bytes.
  static Gid from_ipv6(const void* address) {
    Gid gid;
    std::memcpy(gid.bytes.data(), address, 16);
    return gid;
  }
};

// The payload bytes of a full packet. The enumerator's value is the size.
enum class Mtu : uint16_t { k256 = 256, k512 = 512, k1024 = 1024, k2048 = 2048, k4096 = 4096 };

constexpr uint32_t bytes_of(Mtu mtu) { return static_cast<uint32_t>(mtu); }

}  // namespace verbena::wire
