// Streams: what a capture shows of the state behind its packets. A stream is the packets of one
// host to one queue pair of another. It has one order of PSNs, so gaps and retransmissions show. A
// capture does not say which two streams belong to one pair of queue pairs; that follows from the
// PSNs that responses name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
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
  uint64_t missing = 0;  // PSNs that the capture skips
  uint64_t naks = 0;
  uint64_t rnr_naks = 0;
  uint64_t cnps = 0;
  uint64_t marked = 0;
  uint64_t wrong_icrcs = 0;

  // Requests of RC and XRC.
  bool is_reliable = false;
  wire::OptionalPsn next;      // expected; none: nothing was seen yet
  bool next_is_known = true;   // false behind a READ, whose responses use an unknown number of PSNs
  wire::OptionalPsn unacked;   // the first one without a response
  uint64_t message_bytes = 0;  // of the message in progress, before this packet
  // Responses: the requests that they belong to; null: not known yet.
  Stream* requests = nullptr;
};

// What is remarkable about a packet.
struct Remarks {
  bool is_retransmission = false;
  uint32_t missing_before = 0;  // PSNs
  // For a packet of a message: where its payload begins.
  uint64_t offset = 0;
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
  static void add_request(Stream& stream, const wire::Packet& packet, Remarks& remarks);
  void add_response(Stream& stream, const wire::Packet& packet, Remarks& remarks);
  Stream* find_requests(const Stream& responses, wire::Psn psn);

  std::unordered_map<StreamId, Stream, StreamIdHash> streams_;
  std::vector<Stream*> order_;
  Stream* latest_ = nullptr;
};

}  // namespace verbena::explain
