// Transport headers as plain values. load() and store() convert between the fields and network
// bytes; no struct is laid over received memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "wire/identifiers.h"
#include "wire/opcode.h"
#include "wire/psn.h"

namespace verbena::wire {

inline constexpr uint16_t kDefaultPkey = 0xFFFF;

// The word of the BTH that differs between the packets of a run.
inline constexpr size_t kBthFlagsOffset = 8;
inline constexpr uint32_t kBthAckRequestBit = 0x80000000u;
inline constexpr uint32_t kBthPsnBits = 0xFFFFFFu;

// Base transport header, 12 bytes:
//   0 opcode | 1 SE:1 M:1 pad:2 tver:4 | 2..3 pkey | 4 FECN:1 BECN:1 resv:6 | 5..7 destination QP
//   8 A:1 resv:7 | 9..11 PSN
// Between two Verbenas the last reserved field holds the extension flags (core/ext); otherwise 0.
struct Bth {
  uint8_t opcode = 0;
  bool solicited = false;
  // MigReq: hardware sends and expects 1 while no path migration is in progress.
  bool migrated = true;
  uint8_t pad = 0;
  uint8_t version = 0;
  uint16_t pkey = kDefaultPkey;
  bool fecn = false;
  bool becn = false;
  Qpn destination;
  bool ack_request = false;
  uint8_t extension_flags = 0;  // resv:7, the extension flags
  Psn psn{0};

  static Bth load(const std::byte* p) {
    const uint32_t words[3] = {load_be32(p), load_be32(p + 4), load_be32(p + 8)};
    Bth h;
    h.opcode = static_cast<uint8_t>(words[0] >> 24);
    h.solicited = (words[0] >> 23 & 1) != 0;
    h.migrated = (words[0] >> 22 & 1) != 0;
    h.pad = words[0] >> 20 & 3;
    h.version = words[0] >> 16 & 0x0F;
    h.pkey = static_cast<uint16_t>(words[0]);
    h.fecn = (words[1] >> 31) != 0;
    h.becn = (words[1] >> 30 & 1) != 0;
    h.destination = Qpn(words[1]);
    h.ack_request = (words[2] >> 31) != 0;
    h.extension_flags = words[2] >> 24 & 0x7F;
    h.psn = Psn(words[2] & 0xFFFFFF);
    return h;
  }
  void store(std::byte* p) const {
    store_be32(p, uint32_t{opcode} << 24 | uint32_t{solicited} << 23 | uint32_t{migrated} << 22 |
                      (pad & 3u) << 20 | (version & 0x0Fu) << 16 | pkey);
    store_be32(p + 4, uint32_t{fecn} << 31 | uint32_t{becn} << 30 | destination.value());
    store_be32(p + 8, uint32_t{ack_request} << 31 | uint32_t{extension_flags} << 24 | psn.value());
  }
};

// RDMA extended transport header, 16 bytes: 0..7 virtual address | 8..11 R_Key | 12..15 DMA length
struct Reth {
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint32_t length = 0;

  static Reth load(const std::byte* p) {
    return {load_be64(p), load_be32(p + 8), load_be32(p + 12)};
  }
  void store(std::byte* p) const {
    store_be64(p, address);
    store_be32(p + 8, rkey);
    store_be32(p + 12, length);
  }
};

// Datagram extended transport header, 8 bytes: 0..3 Q_Key | 4 reserved | 5..7 source QP
struct Deth {
  uint32_t qkey = 0;
  Qpn source;

  static Deth load(const std::byte* p) { return {load_be32(p), Qpn(load_be32(p + 4) & 0xFFFFFF)}; }
  void store(std::byte* p) const {
    store_be32(p, qkey);
    store_be32(p + 4, source.value());
  }
};

inline constexpr uint8_t kPlaceGlobal = 1;
inline constexpr uint8_t kPlacePersistent = 2;
inline constexpr uint8_t kPlaceAny = kPlaceGlobal | kPlacePersistent;
inline constexpr uint8_t kSelectRange = 0;
inline constexpr uint8_t kSelectRegion = 1;

// FLUSH extended transport header, 4 bytes: placement types in bits 0..3 of the big-endian word,
// selectivity level in bits 4..5.
struct FlushEth {
  uint8_t placement = 0;  // kPlaceGlobal: visible to all, kPlacePersistent: survives power loss
  uint8_t selectivity = kSelectRange;

  static FlushEth load(const std::byte* p) {
    const uint32_t word = load_be32(p);
    return {static_cast<uint8_t>(word & 0xF), static_cast<uint8_t>(word >> 4 & 0x3)};
  }
  void store(std::byte* p) const {
    store_be32(p, uint32_t{placement} | uint32_t{selectivity} << 4);
  }
};

// The codes of the AETH syndrome (IBA 9.7.5.1.4). The low five bits of an ACK hold credits, those
// of an RNR NAK a timer code.
enum class AckKind : uint8_t { Ack = 0, RnrNak = 1, Reserved = 2, Nak = 3 };
enum class NakCode : uint8_t {
  SequenceError = 0,
  InvalidRequest = 1,
  RemoteAccess = 2,
  RemoteOperational = 3,
  InvalidRdRequest = 4,
};
inline constexpr uint8_t kUnlimitedCredits = 31;

// ACK extended transport header, 4 bytes: 0 syndrome (0:1 kind:2 value:5) | 1..3 MSN
struct Aeth {
  AckKind kind = AckKind::Ack;
  uint8_t value = kUnlimitedCredits;
  uint32_t msn = 0;

  static Aeth load(const std::byte* p) {
    const uint32_t word = load_be32(p);
    return {static_cast<AckKind>(word >> 29 & 3), static_cast<uint8_t>(word >> 24 & 0x1F),
            word & 0xFFFFFF};
  }
  void store(std::byte* p) const {
    store_be32(
        p, uint32_t{static_cast<uint8_t>(kind)} << 29 | (value & 0x1Fu) << 24 | (msn & 0xFFFFFF));
  }
};

// Atomic extended transport header, 28 bytes: 0..7 address | 8..11 R_Key | 12..19 swap/add | 20..27
// compare
struct AtomicEth {
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint64_t swap_or_add = 0;
  uint64_t compare = 0;

  static AtomicEth load(const std::byte* p) {
    return {load_be64(p), load_be32(p + 8), load_be64(p + 12), load_be64(p + 20)};
  }
  void store(std::byte* p) const {
    store_be64(p, address);
    store_be32(p + 8, rkey);
    store_be64(p + 12, swap_or_add);
    store_be64(p + 20, compare);
  }
};

}  // namespace verbena::wire
