// Network: transports packets between hosts, with the faults of each link. It decides at send time
// whether, when and how often a packet is delivered; the World delivers it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/prng.h"
#include "sim/bottleneck.h"
#include "sim/faults.h"
#include "sim/trace.h"
#include "wire/identifiers.h"

namespace verbena::sim {

using HostId = uint32_t;
using Bytes = std::vector<std::byte>;

struct NetworkCounts {
  uint64_t sent = 0;
  uint64_t delivered = 0;
  uint64_t lost = 0;
  uint64_t bytes = 0;
  wire::PacketFaultCounts faults;
};

// True: this packet is lost. For scenarios that lose exactly one chosen packet.
using DropRule = std::function<bool(HostId from, HostId to, std::span<const std::byte> packet)>;

// Replaces a packet by any number of packets. For tests that show that a checker reports the error.
using TamperRule = std::function<std::vector<Bytes>(HostId from, HostId to, Bytes packet)>;

class Network {
 public:
  struct Delivery {
    Instant at;
    Bytes bytes;
    bool marked = false;  // ECN
  };

  Network(Prng& prng, Trace& trace) : prng_(prng), trace_(trace) {}

  LinkFaults& link(HostId from, HostId to) { return find(from, to).faults; }
  // The faults of links without faults of their own. Set before the first packet.
  LinkFaults& defaults() { return defaults_; }
  // All packets to this host pass `bottleneck` first, which outlives the run.
  void set_bottleneck(HostId to, Bottleneck* bottleneck) { bottlenecks_[to] = bottleneck; }
  // Ends the faults of all links; bandwidth and delay stay.
  void heal();
  void set_drop_rule(DropRule rule) { drop_rule_ = std::move(rule); }
  void set_tamper_rule(TamperRule rule) { tamper_rule_ = std::move(rule); }

  // The packets that are delivered for this packet: none, one, or more.
  std::vector<Delivery> send(HostId from, HostId to, Bytes packet, Instant now);
  const NetworkCounts& counts() const { return counts_; }
  // An attacker's modification of a packet.
  Bytes mangle(const Bytes& packet);

  // Simulated packets have no IP header. Datagrams and CNPs are not ECN-capable.
  static bool is_ecn_capable(const Bytes& packet);
  static wire::Gid gid_of(HostId host);
  static wire::Gid gid_of_group(uint32_t group);

 private:
  struct Link {
    LinkFaults faults;
    Instant busy_until{};
  };
  Link& find(HostId from, HostId to);
  std::vector<Delivery> transmit(HostId from, HostId to, Bytes packet, Instant now);
  // When a packet has left the link's queue; nothing: the queue is full.
  std::optional<Bottleneck::Passage> leave_queue(Link& link, HostId to, const Bytes& packet,
                                                 Instant now);
  void deliver(const LinkFaults& link, Bytes packet, const Bottleneck::Passage& passage,
               std::vector<Delivery>& out);
  Duration travel_time(const LinkFaults& link);

  Prng& prng_;
  Trace& trace_;
  LinkFaults defaults_;
  std::map<std::pair<HostId, HostId>, Link> links_;
  std::map<HostId, Bottleneck*> bottlenecks_;
  DropRule drop_rule_;
  TamperRule tamper_rule_;
  NetworkCounts counts_;
};

}  // namespace verbena::sim
