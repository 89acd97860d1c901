// A received packet, parsed once: after this nothing above the wire layer touches raw header bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "wire/headers.h"

namespace verbena::wire {

// Why bytes are not a packet. Each is a counter.
enum class ParseError : uint8_t { TooShort, UnknownOpcode, BadVersion, BadPadding };

struct Packet {
  OpcodeInfo op;
  Bth bth;
  Deth deth;              // valid when op.has_deth
  uint32_t xrc_srqn = 0;  // XRCETH: the shared receive queue; valid when op.has_xrc_eth
  FlushEth flush;         // valid when op.has_flush_eth
  Reth reth;              // valid when op.has_reth
  Aeth aeth;              // valid when op.has_aeth
  AtomicEth atomic;       // valid when op.has_atomic_eth
  uint64_t original = 0;  // AtomicAckETH: what memory held before; valid when op.has_atomic_ack_eth
  uint32_t immediate = 0;               // host order; valid when op.has_immediate
  uint32_t invalidate_rkey = 0;         // valid when op.has_invalidate
  std::span<const std::byte> payload;   // without padding
  std::span<const std::byte> in_front;  // between headers and payload, where these lie apart
  uint32_t cut_bytes = 0;               // as RxPacket says
  bool in_window = false;               // as TxPacket says
  bool last = false;                    // the same
  std::optional<Psn> piggyback;  // sent only: an ACK, between headers and payload

  // `bytes` runs from the BTH to the padding; the ICRC is already gone. The result points into it.
  static std::optional<Packet> parse(std::span<const std::byte> bytes, ParseError* why) {
    Packet p;
    return parse_into(p, bytes, why, {}) ? std::optional(p) : std::nullopt;
  }
  // The same into a packet that need not be new: what is not valid stays as it was. `apart`:
  // payload and padding, if they are not in `bytes`.
  static bool parse_into(Packet& p, std::span<const std::byte> bytes, ParseError* why,
                         std::span<const std::byte> apart);
};

// Writes the headers that op's opcode asks for, from p's values; returns their size (at most 64).
size_t store_headers(const Packet& p, std::byte* to);

}  // namespace verbena::wire
