// ManagementPort: queue pair 1, which every NIC has. Management datagrams (MADs) that pass its
// checks wait here for the engine's owner; those of the owner wait here for the next transmit. The
// port does not interpret them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "core/qp_common.h"
#include "wire/packet.h"
#include "wire/packet_io.h"

namespace verbena::core {

inline constexpr uint32_t kManagementQkey = 0x80010000;
inline constexpr size_t kMadBytes = 256;

// A received packet: BTH, DETH, MAD.
struct ManagementDatagram {
  static constexpr size_t kHeaderBytes = wire::info_of(wire::Opcode::UdSendOnly).header_bytes;

  wire::RxMeta meta;
  std::array<std::byte, kHeaderBytes + kMadBytes> packet{};

  std::span<const std::byte, kMadBytes> mad() const {
    return std::span(packet).subspan<kHeaderBytes>();
  }
};

class ManagementPort {
 public:
  explicit ManagementPort(EngineState& engine) : engine_(engine) {}

  // `packet` is the parsed form of `bytes`.
  void on_packet(const wire::Packet& packet, std::span<const std::byte> bytes,
                 const wire::RxMeta& meta);
  bool has_datagrams() const { return !inbox_.empty(); }
  bool take(ManagementDatagram& into);

  // The path must be open, and counted in EngineState::paths if it may be closed. If the queue is
  // full, the MAD is dropped: its sender retransmits.
  void send(wire::PathId path, std::span<const std::byte, kMadBytes> mad);
  bool anything_to_send() const { return !outbox_.empty(); }
  void transmit(wire::PacketSink& sink);

 private:
  struct Outgoing {
    wire::PathId path;
    std::array<std::byte, kMadBytes> mad;
  };

  EngineState& engine_;
  std::deque<ManagementDatagram> inbox_;
  std::deque<Outgoing> outbox_;
  wire::Psn next_psn_{0};
};

}  // namespace verbena::core
