// SharedMemory: links through memory between simulated hosts, as between two processes of one host.
// A link is two rings of packets, and each end may access the memory that the other one exposes. A
// link can be full, its reader can sleep or stop, an access can be refused, packets can be
// retracted, and the link can end at any time; then packets use the network.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "sim/network.h"
#include "sim/trace.h"
#include "wire/local_peer.h"
#include "wire/one_sided.h"

namespace verbena::sim {

struct MemoryLinkShape {
  bool large_packets = true;  // packets of up to 64 KiB instead of the path MTU
  bool reachable = true;      // each end may access the other one's memory and retract packets
  double refusal = 0;         // probability that a valid access or retraction fails
  double hostile = 0;         // probability that a mangled record follows a packet
  size_t ring_bytes = 1 << 20;

  // Of a run that breaks a rule on purpose.
  static MemoryLinkShape drawn(Prng& prng);
};

struct MemoryCounts {
  uint64_t packets = 0;
  uint64_t lost = 0;  // in a full ring or an ended link
  uint64_t accesses = 0;
  uint64_t retracted = 0;
};

// The memory that a host exposes to its peers.
class ExposedMemory final : public wire::Exposure {
 public:
  void expose(const wire::ExposedRegion& region) override { regions_[region.key] = region; }
  void withdraw(uint32_t key) override { regions_.erase(key); }
  void expose(wire::Qpn qpn, const wire::ExposedQp& qp) override { qps_[qpn.value()] = qp; }
  void withdraw(wire::Qpn qpn) override { qps_.erase(qpn.value()); }
  // The address of a request's bytes; null: not permitted.
  std::byte* resolve(const wire::OneSided& request, const wire::Gid& source,
                     const wire::Gid& destination) const;

 private:
  std::map<uint32_t, wire::ExposedRegion> regions_;  // by key
  std::map<uint32_t, wire::ExposedQp> qps_;          // by number
};

class SharedMemory {
 public:
  struct Record {
    Bytes bytes;              // headers, payload, padding
    size_t header_bytes = 0;  // a long payload is stored separately
    uint32_t packet_payload_bytes = 0;
    wire::Ack ack;  // if `bytes` is empty
  };

  SharedMemory(uint64_t seed, Network& network, Trace& trace)
      : prng_(seed ^ kSeedOffset), network_(network), trace_(trace) {}

  void open(HostId a, HostId b, const MemoryLinkShape& shape);
  bool any() const { return !links_.empty(); }
  // Random choices about links, independent of the world's own choices.
  Prng& prng() { return prng_; }
  const MemoryCounts& counts() const { return counts_; }
  void count_lost() { ++counts_.lost; }

  // --- what may happen to a link -----------------------------------------------------------------
  // A blocked ring reports that it is full.
  void block(HostId from, HostId to, bool on);
  // `host` detects that the link has ended.
  void end(HostId host, HostId peer);
  void expose(HostId host, const wire::Gid& gid, const ExposedMemory& memory) {
    exposed_[host] = {gid, &memory};
  }

  // --- for hosts: the sending side ---------------------------------------------------------------
  // Whether the host sends through memory to this peer.
  bool has_link(HostId from, HostId to) const { return find_open(from, to) != nullptr; }
  uint32_t packet_bytes(HostId from, HostId to) const;
  bool is_full(HostId from, HostId to) const;
  bool is_asleep(HostId from, HostId to) const;
  void push(HostId from, const wire::TxPacket& packet);
  bool send_short_ack(HostId from, wire::PathId path, const wire::Ack& ack);
  bool access(HostId from, const wire::OneSided& request);
  bool retract(HostId from, const wire::Unread& requests);
  // The peers that were written to since the last call.
  std::vector<HostId> take_written(HostId from);

  // --- for hosts: the receiving side -------------------------------------------------------------
  // Appends at most `max_records` received records, each with its writer.
  void take(HostId to, size_t max_records, std::vector<std::pair<HostId, Record>>& records);
  bool anything_for(HostId to) const;
  void set_asleep(HostId to, bool asleep);
  // A stopped host may own its rings; then nothing is retracted.
  void set_stopped(HostId to, bool stopped);
  // Removes ended links whose records have all been read. True: there were some.
  bool remove_ended(HostId host);

 private:
  static constexpr uint64_t kSeedOffset = 0x6D656D6F72790000;

  struct Ring {
    std::deque<Record> records;
    size_t bytes = 0;
    bool blocked = false;
    bool asleep = false;
    bool owned = false;    // by a reader that stopped in the middle of a batch
    bool written = false;  // since take_written()
    bool closed = false;   // the reader has removed the link
  };
  struct Link {
    MemoryLinkShape shape;
    std::array<Ring, 2> rings;      // by writer: the lower host, the higher one
    std::array<bool, 2> ended{};    // as that host sees it
    std::array<bool, 2> removed{};  // and that host has read all records
  };
  struct Exposed {
    wire::Gid gid;
    const ExposedMemory* memory = nullptr;
  };
  static size_t side(HostId self, HostId peer) { return self < peer ? 0 : 1; }
  static std::pair<HostId, HostId> key(HostId a, HostId b) {
    return {std::min(a, b), std::max(a, b)};
  }
  Link* find(HostId a, HostId b);
  const Link* find_open(HostId from, HostId to) const;
  Link* find_open(HostId from, HostId to) {
    return const_cast<Link*>(std::as_const(*this).find_open(from, to));
  }
  void append(Link& link, HostId from, HostId to, Record record);
  template <typename Visit>
  void for_each_inbound(HostId to, Visit visit);

  Prng prng_;
  Network& network_;
  Trace& trace_;
  MemoryCounts counts_;
  std::map<std::pair<HostId, HostId>, Link> links_;
  std::map<HostId, Exposed> exposed_;
};

}  // namespace verbena::sim
