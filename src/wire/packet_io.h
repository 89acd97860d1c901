// The interface between an engine and the component that moves its packets: a datapath, a decorator
// around one, or the simulator's network. Neither side includes the other; both include this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/identifiers.h"
#include "wire/psn.h"
#include "wire/traffic_class.h"

namespace verbena::wire {

// A datapath's handle for its route to one lane of a peer.
enum class PathId : uint32_t {};

// The addressing that a path is opened with.
struct Route {
  Gid source;
  Gid destination;
  Qpn peer;  // its top byte names the peer's lane, for steering and GSO batches; kManagementQpn:
             // all processes of the destination
  uint8_t traffic_class = 0;  // DSCP and ECN bits, as in the IP header
  uint8_t hop_limit = 64;
  uint32_t flow_label = 0;  // IPv6 only
};

// The addressing of a received packet.
struct RxMeta {
  Gid source;
  Gid destination;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  bool own = false;        // a multicast packet that this process sent
  bool forwarded = false;  // another process of this host received it first

  bool operator==(const RxMeta&) const = default;
};

// An ACK of all requests up to `psn`, without the other fields of a packet.
struct Ack {
  Qpn destination;
  Psn psn{0};
};

// A received packet, BTH to padding; the ICRC was checked and removed. Points into the datapath's
// memory.
struct RxPacket {
  std::span<const std::byte> bytes;  // empty: the packet is `ack`
  const RxMeta* meta = nullptr;
  // Payload and padding, if they are not in `bytes`. The peer may change them at any time, so they
  // are read only once.
  std::span<const std::byte> separate_payload{};
  uint32_t packet_payload_bytes = 0;  // see TxPacket; 0: the path MTU
  Ack ack{};
};

inline constexpr size_t kMaxHeaderBytes = 64;
// The longest payload of a packet, over any medium.
inline constexpr uint32_t kMaxPayloadBytes = 64 * 1024;

class LocalPeer;  // local_peer.h

// A packet to send. The payload is referenced in place and may still change, so the sink copies it,
// and computes the ICRC over the copy, before push() returns.
struct TxPacket {
  PathId path{};
  std::array<std::byte, kMaxHeaderBytes> header;  // BTH and extension headers
  uint8_t header_bytes = 0;
  uint8_t pad = 0;  // zero bytes to add behind the payload
  std::span<const std::span<const std::byte>> payload;
  uint32_t payload_bytes = 0;  // the sum of the spans
  // Requests: the payload bytes of every packet of the message, and of its response, except the
  // last. On the wire, this is the path MTU and is not transmitted.
  uint32_t packet_payload_bytes = 0;
  // A window limits such packets: a request that is sent for the first time, or a response to a
  // peer that limits what it requests.
  bool in_window = false;
  // No packet follows that could share a batch with this one.
  bool last = false;
  // A short packet that may end the GSO batch before it: no packet of another queue pair follows.
  bool ends_batch = false;
  // False: the packet leaves without the ECN bits of its path (Not-ECT), for instance a CNP.
  bool ecn_capable = true;
};

// Consecutive packets of one message to send. Their headers differ in the PSN, which counts up by
// one, and in the A bit.
struct TxRun {
  static constexpr uint32_t kMaxPackets = 64;

  // The first packet, except for its payload. The others have as many payload bytes, and no
  // padding.
  const TxPacket& first;
  std::span<const std::byte> payload;  // of all packets
  uint32_t count = 0;                  // at most kMaxPackets
  uint64_t ack_requests = 0;           // bit i: packet i has the A bit

  std::span<const std::byte> payload_of(uint32_t i) const {
    return payload.subspan(size_t{i} * first.payload_bytes, first.payload_bytes);
  }
  // Changes the header of any packet of the run into that of packet `i`.
  void store_header_of(uint32_t i, std::byte* header) const;
};

// The destination of an engine's packets. The owner flushes it after the turn. LocalPeer has the
// further functions of shared memory.
class PacketSink {
 public:
  virtual ~PacketSink() = default;
  // The number of packets of the largest size that it can take now.
  virtual size_t room() const = 0;
  // The number of packets of the path MTU that it can take now on this path: room() or more.
  virtual size_t room_on(PathId) const { return room(); }
  // Takes one packet. Only called while room() > 0. The packet may still be lost.
  virtual void push(const TxPacket& packet) = 0;
  // Takes the packets of a run, as push() does. Only called if room_on() >= run.count.
  virtual void push_run(const TxRun& run);
  // Null: no path leads to a process of this host.
  LocalPeer* local_peer() const { return local_peer_; }

 protected:
  PacketSink() = default;
  explicit PacketSink(LocalPeer* local_peer) : local_peer_(local_peer) {}

 private:
  LocalPeer* local_peer_ = nullptr;
};

}  // namespace verbena::wire
