// What an agent and its exchanges share: configuration, counters, identifiers, and the two queues
// the owner empties.
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

  // Room for what the owner is told about so many exchanges before it takes it. Events that wait
  // may be of exchanges that have ended.
  void reserve_events(size_t exchanges) {
    events.reserve(events.size() + kEventsPerExchange * exchanges);
  }
  void tell(const Event& event) {
    if (!events.push(event)) counters.add(CounterId::out_of_memory);
  }

  // 24 bits that nobody can guess under our slot; the agent looks that they are free. Each comes
  // once before any comes again (a permutation of a counter): a peer may still remember those that
  // we have forgotten.
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
  void send(const Message& message, const Addresses& way, uint8_t traffic_class) {
    OutgoingMad mad{way.local_gid, way.peer_gid, traffic_class, {}};
    message.store(mad.bytes);
    push(mad);
  }
  void send_bytes(const Mad& bytes, const Addresses& way, uint8_t traffic_class) {
    push({way.local_gid, way.peer_gid, traffic_class, bytes});
  }

 private:
  // Request or response, established, disconnected, end of TIMEWAIT.
  static constexpr size_t kEventsPerExchange = 4;

  // What there is no memory for is lost, as on the network.
  void push(const OutgoingMad& mad) {
    counters.add(outbox.push(mad) ? CounterId::mads_sent : CounterId::out_of_memory);
  }

  static constexpr uint64_t kIds = uint64_t{1} << 63;  // apart from what draws_ counts
  uint64_t ids_ = 0;
  uint64_t draws_ = 0;
};

}  // namespace verbena::cm
