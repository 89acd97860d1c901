// ResponderResources: the READs, atomics, ATOMIC WRITEs and FLUSHes that a responder has executed,
// with their responses that are to be sent. A response can be replayed until max_dest_rd_atomic
// later requests have been executed (IBA 9.7.5.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire/packet.h"

namespace verbena::core {

// The number of packets of a READ response.
inline uint32_t read_response_packets(uint32_t length, uint32_t packet_payload_bytes) {
  return length == 0 ? 1 : (length - 1) / packet_payload_bytes + 1;
}

class ResponderResources {
 public:
  struct Resource {
    wire::Psn first{0};
    uint32_t packet_payload_bytes = 0;  // READ: of each response packet except the last
    uint32_t packets = 0;
    uint32_t msn = 0;
    uint32_t pd = 0;
    wire::Verb verb{};
    bool used = false;
    bool pending = false;
    bool is_replay = false;     // the pending response was requested before
    uint32_t next_packet = 0;   // READ: the next packet to send
    uint32_t first_packet = 0;  // of the request (or its duplicate) that the response is for
    uint32_t end_packet = 0;
    wire::Reth reth;  // READ
    uint64_t original = 0;

    bool is_atomic() const {
      return verb == wire::Verb::CompareSwap || verb == wire::Verb::FetchAdd;
    }
  };

  // Keeps the newest. If it throws, nothing has changed.
  void resize(uint32_t count);
  // A new connection begins: no request has been executed.
  void forget_all();
  // There are none until resize().
  void clear();
  bool empty() const { return ring_.empty(); }

  // False while the peer has max_dest_rd_atomic requests outstanding. A pending replay does not
  // count: the peer has sent a new request, so it has received the first response.
  bool has_free() const {
    return !ring_.empty() && (!ring_[next_].pending || ring_[next_].is_replay);
  }
  // The resource of a request that is executed now. Null: none is free.
  Resource* take(wire::Verb verb, wire::Psn first, uint32_t pd);

  // Packets [from, from + packets) of the response are to be sent.
  void start_response(Resource& resource, uint32_t from, uint32_t packets, bool is_replay);
  // The same for the request that `duplicate` repeats; it is not executed again. False if there is
  // no such request. `packet_payload_bytes`: of the duplicate.
  bool replay(const wire::Packet& duplicate, uint32_t packet_payload_bytes);
  void end_response(Resource& resource) {
    resource.pending = false;
    --pending_;
  }
  void drop_responses();
  bool has_pending() const { return pending_ != 0; }
  // Responses leave in PSN order: an ACK that overtook a READ response would report it as lost.
  Resource* next_pending();

 private:
  Resource& by_age(size_t age) { return ring_[(next_ + ring_.size() - age) % ring_.size()]; }

  std::vector<Resource> ring_;  // max_dest_rd_atomic deep
  size_t next_ = 0;
  uint32_t pending_ = 0;
};

}  // namespace verbena::core
