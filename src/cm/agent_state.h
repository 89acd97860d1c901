// The state that an agent shares with its exchanges: configuration, counters, IDs, and the two
// queues that the owner empties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/queue.h"
#include "cm/counters.h"
#include "cm/events.h"
#include "cm/mad.h"
#include "cm/parameters.h"
#include "wire/identifiers.h"

namespace verbena::cm {

struct OutgoingMad {
  wire::Gid source;
  wire::Gid destination;
  uint8_t traffic_class = 0;
  Mad bytes{};
};

struct AgentState {
  explicit AgentState(const AgentConfig& with) : config(with) {}

  AgentConfig config;
  Counters counters;
  Queue<OutgoingMad> outbox;
  Queue<Event> events;

  // Reserves memory for the events of this many exchanges. Queued events may belong to exchanges
  // that have ended.
  void reserve_events(size_t exchanges) {
    events.reserve(events.size() + kEventsPerExchange * exchanges);
  }
  void report(const Event& event) {
    if (!events.push(event)) counters.add(CounterId::out_of_memory);
  }

  // Returns 24 unpredictable bits under our slot; the agent checks that the ID is free. A
  // permutation of a counter yields each ID once before it repeats any: a peer may still remember
  // IDs that the agent has removed.
  uint32_t draw_comm_id() {
    uint32_t left = static_cast<uint32_t>(ids_ >> 12 & 0xFFF);
    uint32_t right = static_cast<uint32_t>(ids_++ & 0xFFF);
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = siphash(config.secret, kIds | round << 32 | right);
      left = std::exchange(right, left ^ static_cast<uint32_t>(mixed & 0xFFF));
    }
    return uint32_t{config.slot} << 24 | left << 12 | right;
  }
  uint64_t draw_tid() { return siphash(config.secret, draws_++); }

  template <typename Message>
  void send(const Message& message, const Addresses& addresses, uint8_t traffic_class) {
    OutgoingMad mad{addresses.local_gid, addresses.peer_gid, traffic_class, {}};
    message.store(mad.bytes);
    push(mad);
  }
  void send_bytes(const Mad& bytes, const Addresses& addresses, uint8_t traffic_class) {
    push({addresses.local_gid, addresses.peer_gid, traffic_class, bytes});
  }

 private:
  // Request or response, established, disconnected, end of TIMEWAIT.
  static constexpr size_t kEventsPerExchange = 4;

  // Without memory the datagram is dropped, as on a lossy network.
  void push(const OutgoingMad& mad) {
    counters.add(outbox.push(mad) ? CounterId::mads_sent : CounterId::out_of_memory);
  }

  static constexpr uint64_t kIds = uint64_t{1} << 63;  // disjoint from the values of draws_
  uint64_t ids_ = 0;
  uint64_t draws_ = 0;
};

}  // namespace verbena::cm
