// What crosses the border between an engine and whatever carries its packets: a datapath, a
// decorator around one, or the simulator's network. Neither side includes the other; both include
// this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/identifiers.h"
#include "wire/psn.h"

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

// All up to `psn` arrived: what most ACKs say, and all of it.
struct Ack {
  Qpn destination;
  Psn psn{0};
};

// BTH to padding; the ICRC was checked and removed. Points into the carrier's memory.
struct RxPacket {
  std::span<const std::byte> bytes;  // none: it is `ack`
  const RxMeta* meta = nullptr;
  // Payload and padding, where they lie apart from the headers. They may change while they are
  // looked at: good for being copied, once.
  std::span<const std::byte> apart{};
  uint32_t packet_payload_bytes = 0;  // see TxPacket; 0: as the path MTU says
  Ack ack{};
};

inline constexpr size_t kMaxHeaderBytes = 64;
// The most that a packet carries, over any medium.
inline constexpr uint32_t kMaxPayloadBytes = 64 * 1024;

class LocalPeer;  // local_peer.h

// A packet to send. The payload is referenced where it lies and may still change there, so whoever
// takes the packet copies it (and sums the copy) before push() returns.
struct TxPacket {
  PathId path{};
  std::array<std::byte, kMaxHeaderBytes> header;  // BTH and extension headers
  uint8_t header_bytes = 0;
  uint8_t pad = 0;  // zero bytes to add behind the payload
  std::span<const std::span<const std::byte>> payload;
  uint32_t payload_bytes = 0;  // in all of it
  // Requests: all packets of the message but the last have so many bytes, and so have those of its
  // answer. On the wire nobody is told; it is the path MTU there.
  uint32_t packet_payload_bytes = 0;
  // It is sent for the first time, and the engine lets only so much of such be unacknowledged; or
  // it answers a peer that asks for no more than that at a time.
  bool in_window = false;
  // Nothing follows that it had better wait for.
  bool last = false;
  // A short packet that may end the GSO batch before it: no packet of another queue pair follows.
  bool ends_batch = false;
};

// Where an engine puts its packets. The owner flushes it after the turn. Only shared memory can do
// more than this; the rest is in LocalPeer.
class PacketSink {
 public:
  virtual ~PacketSink() = default;
  // How many more packets of the largest size it will take now.
  virtual size_t room() const = 0;
  // Takes one packet. Only called while room() > 0. It may be lost later: the protocol recovers.
  virtual void push(const TxPacket& packet) = 0;
  // Null: no path leads to a process of this host.
  LocalPeer* local_peer() const { return local_peer_; }

 protected:
  PacketSink() = default;
  explicit PacketSink(LocalPeer* local_peer) : local_peer_(local_peer) {}

 private:
  LocalPeer* local_peer_ = nullptr;
};

}  // namespace verbena::wire
