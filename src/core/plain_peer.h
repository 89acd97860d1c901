// PeerExtensions of a build without core/ext: no peer has any. core/ext/peer_extensions.h
// documents the functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/reorder_buffer.h"
#include "wire/packet.h"

namespace verbena::core {

inline constexpr size_t kPiggybackBytes = 0;

class SackList {
 public:
  static int32_t reach(uint32_t) { return ReorderBuffer::kReach; }
  SackList(const ReorderBuffer&, wire::Psn) {}
  std::span<const std::byte> bytes() const { return {}; }
  static bool contains(std::span<const std::byte>, wire::Psn, wire::Psn) { return false; }
};

class PeerExtensions {
 public:
  explicit PeerExtensions(bool) {}
  void connect(wire::Qpn, wire::Qpn) {}

  static constexpr bool peer_buffers_requests() { return false; }
  void on_response(const wire::Bth&) {}
  static constexpr bool has_echo(const wire::Bth&) { return false; }
  static constexpr uint8_t request_flag(bool) { return 0; }
  static constexpr uint8_t piggyback_flag() { return 0; }

  static constexpr bool peer_reads_echo(const wire::Bth&) { return false; }
  static constexpr bool peer_reads_sack() { return false; }
  static constexpr bool on_request(const wire::Bth&) { return false; }
  static constexpr bool is_in_order(const wire::Bth&) { return false; }
  static constexpr bool is_reordered(const wire::Bth&) { return false; }
  static constexpr uint8_t response_flag(bool) { return 0; }
  static constexpr uint8_t sack_flag() { return 0; }
  static constexpr bool announced() { return false; }
  void announce_again() {}

  static constexpr bool has_piggyback(const wire::Bth&) { return false; }
  static wire::OptionalPsn take_piggyback(wire::Packet&) { return std::nullopt; }
  static wire::OptionalPsn peek_piggyback(const wire::Packet&) { return std::nullopt; }
};

}  // namespace verbena::core
