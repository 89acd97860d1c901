// What crosses the border between an engine and whatever carries its packets: a datapath, a
// decorator around one, or the simulator's network. Neither side includes the other; both include
// this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/identifiers.h"

namespace verbena::wire {

// A datapath's handle for one way to one peer.
enum class PathId : uint32_t {};

// What a path is made from.
struct Route {
  Gid source;
  Gid destination;
  Qpn peer;  // a path serves one peer process: its QPN's top byte keeps steering and trains apart;
             // kManagementQpn: all of them
  uint8_t traffic_class = 0;  // DSCP and ECN bits, as they go into the IP header
  uint8_t hop_limit = 64;
  uint32_t flow_label = 0;  // IPv6 only
};

// The addressing a packet arrived with.
struct RxMeta {
  Gid source;
  Gid destination;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  bool own = false;        // this process sent it itself: a multicast packet that came round
  bool forwarded = false;  // another process of this host received it first
};

// BTH to padding; the ICRC was checked and removed. Points into the carrier's memory.
struct RxPacket {
  std::span<const std::byte> bytes;
  const RxMeta* meta = nullptr;
};

inline constexpr size_t kMaxHeaderBytes = 64;

// A packet to send. The payload is referenced where it lies and may still change there, so whoever
// takes the packet copies it (and sums the copy) before push() returns.
struct TxPacket {
  PathId path{};
  std::array<std::byte, kMaxHeaderBytes> header;  // BTH and extension headers
  uint8_t header_bytes = 0;
  uint8_t pad = 0;  // zero bytes to add behind the payload
  std::span<const std::span<const std::byte>> payload;
};

// Where an engine puts its packets. The owner flushes it after the turn.
class PacketSink {
 public:
  virtual ~PacketSink() = default;
  // How many more packets of the largest size it will take now.
  virtual size_t room() const = 0;
  // Takes one packet. Only called while room() > 0. It may be lost later: the protocol recovers.
  virtual void push(const TxPacket& packet) = 0;
};

}  // namespace verbena::wire
