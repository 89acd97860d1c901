// A received packet, parsed once: after this nothing above the wire layer touches raw header bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

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
  bool ends_batch = false;              // the same
  std::optional<Psn> piggyback;         // sent only: an ACK, between headers and payload

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

// The extension headers of any opcode, which follow the BTH.
void load_all_extensions(Packet& p, const std::byte* at);
void store_all_extensions(const Packet& p, std::byte* at);

// Parsing and building are inline for the headers that most packets have: they are on the hot path.
inline bool Packet::parse_into(Packet& p, std::span<const std::byte> bytes, ParseError* why,
                               std::span<const std::byte> apart) {
  const auto reject = [&](ParseError e) {
    *why = e;
    return false;
  };
  if (bytes.size() < kBthBytes) return reject(ParseError::TooShort);
  p.bth = Bth::load(bytes.data());
  p.op = info_of(p.bth.opcode);
  if (!p.op.valid()) return reject(ParseError::UnknownOpcode);
  if (p.bth.version != 0) return reject(ParseError::BadVersion);
  if (bytes.size() < p.op.header_bytes) return reject(ParseError::TooShort);

  const std::byte* at = bytes.data() + kBthBytes;
  if (p.op.has_rare_headers) [[unlikely]] {
    load_all_extensions(p, at);
  } else if (p.op.has_aeth) {
    p.aeth = Aeth::load(at);
  } else {
    if (p.op.has_reth) {
      p.reth = Reth::load(at);
      at += kRethBytes;
    }
    if (p.op.has_immediate) p.immediate = load_be32(at);
  }

  p.payload = bytes.subspan(p.op.header_bytes);
  p.in_front = {};
  if (!apart.empty()) p.in_front = std::exchange(p.payload, apart);
  if (p.bth.pad > p.payload.size() || p.payload.size() % 4 != 0) {
    return reject(ParseError::BadPadding);
  }
  p.payload = p.payload.first(p.payload.size() - p.bth.pad);
  return true;
}

// Writes the headers that p's opcode has; returns their size (at most 64).
inline size_t store_headers(const Packet& p, std::byte* to) {
  const OpcodeInfo& op = info_of(p.bth.opcode);
  p.bth.store(to);
  std::byte* at = to + kBthBytes;
  if (op.has_rare_headers) [[unlikely]] {
    store_all_extensions(p, at);
  } else if (op.has_aeth) {
    p.aeth.store(at);
  } else {
    if (op.has_reth) {
      p.reth.store(at);
      at += kRethBytes;
    }
    if (op.has_immediate) store_be32(at, p.immediate);
  }
  return op.header_bytes;
}

}  // namespace verbena::wire
