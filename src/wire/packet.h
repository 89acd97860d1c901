// Packet: a packet's headers as values. Code above the wire layer uses these and never touches raw
// header bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "wire/headers.h"

namespace verbena::wire {

// The reason why bytes are not a packet. Each has a counter.
enum class ParseError : uint8_t { TooShort, UnknownOpcode, BadVersion, BadPadding };

struct Packet {
  OpcodeInfo op;
  Bth bth;
  Deth deth;                     // valid when op.has_deth
  uint32_t xrc_srqn = 0;         // XRCETH: the shared receive queue; valid when op.has_xrc_eth
  FlushEth flush;                // valid when op.has_flush_eth
  Reth reth;                     // valid when op.has_reth
  Aeth aeth;                     // valid when op.has_aeth
  AtomicEth atomic;              // valid when op.has_atomic_eth
  uint64_t original = 0;         // AtomicAckETH: the value before; valid when op.has_atomic_ack_eth
  uint32_t immediate = 0;        // host order; valid when op.has_immediate
  uint32_t invalidate_rkey = 0;  // valid when op.has_invalidate
  std::span<const std::byte> payload;   // without padding
  std::span<const std::byte> in_front;  // bytes behind the headers if the payload is separate
  uint32_t packet_payload_bytes = 0;    // see RxPacket
  bool in_window = false;               // see TxPacket
  bool last = false;                    // see TxPacket
  bool ends_batch = false;              // see TxPacket
  bool ecn_capable = true;              // see TxPacket
  OptionalPsn piggyback;                // sent only: a piggybacked ACK, in front of the payload

  // `bytes` runs from the BTH to the padding, without the ICRC. The result points into it.
  static std::optional<Packet> parse(std::span<const std::byte> bytes, ParseError* why) {
    Packet p;
    return parse_into(p, bytes, why, {}) ? std::optional(p) : std::nullopt;
  }
  // As parse(), into an existing packet: fields that are not valid for the opcode keep their old
  // values. `separate_payload`: payload and padding, if they are not in `bytes`.
  static bool parse_into(Packet& p, std::span<const std::byte> bytes, ParseError* why,
                         std::span<const std::byte> separate_payload);
};

// The extension headers of every opcode, which follow the BTH. Their order is DETH or XRCETH, then
// FETH, then RETH or AtomicETH or AETH, then the others.
void load_all_extensions(Packet& p, const std::byte* at);
// Inline: the fields of a packet to send stay in registers unless a function gets its address.
inline void store_all_extensions(const Packet& p, std::byte* at) {
  const OpcodeInfo& op = info_of(p.bth.opcode);
  if (op.has_deth) {
    p.deth.store(at);
    at += kDethBytes;
  }
  if (op.has_xrc_eth) {
    store_be32(at, p.xrc_srqn & 0xFFFFFF);
    at += kXrcEthBytes;
  }
  if (op.has_flush_eth) {
    p.flush.store(at);
    at += kFlushEthBytes;
  }
  if (op.has_reth) {
    p.reth.store(at);
    at += kRethBytes;
  }
  if (op.has_atomic_eth) {
    p.atomic.store(at);
    at += kAtomicEthBytes;
  }
  if (op.has_aeth) {
    p.aeth.store(at);
    at += kAethBytes;
  }
  if (op.has_atomic_ack_eth) {
    store_be64(at, p.original);
    at += kAtomicAckEthBytes;
  }
  if (op.has_immediate) {
    store_be32(at, p.immediate);
    at += kImmediateBytes;
  }
  if (op.has_invalidate) store_be32(at, p.invalidate_rkey);
  if (op.verb == Verb::Cnp) std::memset(at, 0, kCnpReservedBytes);
}

// Parsing of the most frequent headers is inline: it is on the hot path.
inline bool Packet::parse_into(Packet& p, std::span<const std::byte> bytes, ParseError* why,
                               std::span<const std::byte> separate_payload) {
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
  if (!separate_payload.empty()) p.in_front = std::exchange(p.payload, separate_payload);
  if (p.bth.pad > p.payload.size() || p.payload.size() % 4 != 0) {
    return reject(ParseError::BadPadding);
  }
  p.payload = p.payload.first(p.payload.size() - p.bth.pad);
  return true;
}

// Writes the headers of p's opcode; returns their size (at most 64).
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
