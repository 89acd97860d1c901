// Streams: what a capture shows of the state behind its packets. A stream is the packets of one
// host to one queue pair of another. It has one order of PSNs, so gaps and retransmissions show. A
// capture does not say which two streams belong to one pair of queue pairs; that follows from the
// PSNs that responses name.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tools/explain/capture.h"
#include "wire/packet.h"

namespace verbena::explain {

struct StreamId {
  wire::Gid source;
  wire::Gid destination;
  uint32_t qpn = 0;  // of the destination
  bool operator==(const StreamId&) const = default;
};

struct StreamIdHash {
  size_t operator()(const StreamId& id) const;
};

struct Stream {
  StreamId id;
  uint64_t packets = 0;
  uint64_t payload_bytes = 0;
  uint64_t retransmitted = 0;
  uint64_t recovered = 0;  // retransmitted, and the first copy is not in the capture
  uint64_t missing_responses = 0;
  uint64_t naks = 0;
  uint64_t rnr_naks = 0;
  uint64_t cnps = 0;
  uint64_t marked = 0;
  uint64_t wrong_icrcs = 0;

  // Requests of RC and XRC.
  bool is_reliable = false;
  wire::OptionalPsn next;     // behind the latest one; none: nothing was seen yet
  bool next_is_known = true;  // false behind a READ, whose responses use an unknown number of PSNs
  wire::OptionalPsn unacked;  // the first one without a response
  // PSNs before `next` that were not seen. Two Verbenas send packets of equal size together, so a
  // gap may close soon.
  std::unordered_set<uint32_t> missing;
  // The latest messages: where they begin, and the payload of their first packet.
  struct Start {
    wire::Psn psn{0};
    uint32_t packet_bytes = 0;
  };
  std::array<Start, 64> starts{};
  size_t messages = 0;
  Start latest_read;            // its PSN, and all its bytes
  wire::OptionalPsn nak_from;   // the peer reported a gap that begins here
  wire::OptionalPsn refused;    // the peer refused this request for good
  Stream* responses = nullptr;  // null: not known

  // Responses of RC and XRC.
  bool has_responses = false;
  Stream* requests = nullptr;       // that they belong to; null: not known
  wire::OptionalPsn next_response;  // of a READ
};

// What is remarkable about a packet.
struct Remarks {
  size_t payload_bytes = 0;  // as on the wire, without a piggybacked ACK
  wire::OptionalPsn piggybacked;
  bool is_retransmission = false;
  bool first_copy_is_missing = false;  // of a retransmission
  uint32_t missing = 0;  // PSNs before it, or that it acknowledges, which the capture skips
  // For a packet of a message: where its payload begins, if that is known.
  std::optional<uint64_t> offset;
  // For a response: the requests, if they are known, and how many PSNs have no response now.
  const Stream* requests = nullptr;
  uint32_t outstanding = 0;
};

class Streams {
 public:
  // The packet was received with a correct ICRC, or with one that cannot be checked.
  Remarks add(const Datagram& datagram, const wire::Packet& packet, Stream*& stream);
  Stream& stream_of(const Datagram& datagram, uint32_t qpn);
  // In the order of their first packets.
  const std::vector<Stream*>& all() const { return order_; }

 private:
  static std::optional<uint64_t> offset_of(Stream& stream, const wire::Packet& packet,
                                           size_t payload_bytes);
  uint32_t skip_to(Stream& stream, wire::Psn psn);
  void begin_again(Stream& stream);
  void take_piggyback(const wire::Packet& packet, Stream& stream, Remarks& remarks);
  void add_request(Stream& stream, const wire::Packet& packet, Remarks& remarks);
  void add_response(Stream& stream, const wire::Packet& packet, Remarks& remarks);
  static void add_read_response(Stream& stream, const wire::Packet& packet, Remarks& remarks);
  bool bind(Stream& responses, wire::Psn psn);
  void acknowledge(Stream& requests, wire::Psn before, Remarks& remarks);

  std::unordered_map<StreamId, Stream, StreamIdHash> streams_;
  std::vector<Stream*> order_;
  Stream* latest_ = nullptr;
  size_t missing_ = 0;  // entries of all Stream::missing
};

}  // namespace verbena::explain
