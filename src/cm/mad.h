// Management datagrams (MADs): 256 bytes on queue pair 1, with a common header and a body that the
// attribute defines (IBA 13.4). This folder uses one class of them, communication management (IBA
// chapter 12).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "wire/identifiers.h"

namespace verbena::cm {

inline constexpr size_t kMadBytes = 256;
inline constexpr uint8_t kBaseVersion = 1;
inline constexpr uint8_t kCmClass = 0x07;
inline constexpr uint8_t kCmClassVersion = 2;
inline constexpr uint8_t kMethodSend = 0x03;

using Mad = std::array<std::byte, kMadBytes>;

enum class Attribute : uint16_t {
  Req = 0x10,
  Mra = 0x11,
  Rej = 0x12,
  Rep = 0x13,
  Rtu = 0x14,
  Dreq = 0x15,
  Drep = 0x16,
  SidrReq = 0x17,
  SidrRep = 0x18,
  Lap = 0x19,
  Apr = 0x1A,
};

// Common MAD header, 24 bytes:
//   0 base version | 1 class | 2 class version | 3 method | 4..5 status | 6..7 class specific
//   8..15 transaction id | 16..17 attribute | 18..19 reserved | 20..23 attribute modifier
struct MadHeader {
  static constexpr size_t kBytes = 24;

  uint8_t base_version = kBaseVersion;
  uint8_t management_class = kCmClass;
  uint8_t class_version = kCmClassVersion;
  uint8_t method = kMethodSend;
  uint16_t status = 0;
  uint16_t class_specific = 0;
  uint64_t tid = 0;
  Attribute attribute = Attribute::Req;
  uint32_t modifier = 0;

  static MadHeader load(const std::byte* p) {
    MadHeader h;
    h.base_version = load_u8(p);
    h.management_class = load_u8(p + 1);
    h.class_version = load_u8(p + 2);
    h.method = load_u8(p + 3);
    h.status = load_be16(p + 4);
    h.class_specific = load_be16(p + 6);
    h.tid = load_be64(p + 8);
    h.attribute = static_cast<Attribute>(load_be16(p + 16));
    h.modifier = load_be32(p + 20);
    return h;
  }
  void store(std::byte* p) const {
    store_u8(p, base_version);
    store_u8(p + 1, management_class);
    store_u8(p + 2, class_version);
    store_u8(p + 3, method);
    store_be16(p + 4, status);
    store_be16(p + 6, class_specific);
    store_be64(p + 8, tid);
    store_be16(p + 16, static_cast<uint16_t>(attribute));
    store_be16(p + 18, 0);
    store_be32(p + 20, modifier);
  }
};

// Whether `bytes` are a complete datagram of the supported CM class and version. The attribute may
// be any.
bool is_cm_mad(std::span<const std::byte> bytes);

// "REQ", "REP", ...; "unknown" for any other attribute.
const char* name_of(Attribute attribute);

}  // namespace verbena::cm
