// Network: hosts, switches and links of ns-3. Each port has a queue that marks ECN-capable packets
// above a threshold and drops what does not fit; a switch spreads flows over all shortest paths.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "bench/scale/ecmp_routing.h"
#include "ns3/node.h"
#include "ns3/nstime.h"
#include "ns3/queue-disc.h"

namespace verbena::scale {

// In bytes for each Gb/s of a port's rate.
struct QueueShape {
  uint64_t mark_bytes_per_gbps = 3000;  // 300 KB at 100 Gb/s
  uint64_t bytes_per_gbps = 20'000;     // 2 MB at 100 Gb/s
};

class Network {
 public:
  using NodeId = uint32_t;  // hosts come first: their ids are 0, 1, ...

  explicit Network(const QueueShape& queues) : queues_(queues) {}

  void add_hosts(uint32_t count);
  NodeId add_switch();
  void connect(NodeId a, NodeId b, uint64_t gbps, ns3::Time delay);
  // After the last link: computes the shortest paths.
  void compute_routes();

  uint32_t host_count() const { return hosts_; }
  size_t node_count() const { return nodes_.size(); }
  ns3::Ptr<ns3::Node> node(NodeId id) const { return nodes_[id].node; }
  ns3::Ipv4Address address_of(NodeId host) const { return EcmpRouting::address_of(host); }
  ns3::Ptr<ns3::QueueDisc> host_queue(NodeId host) const { return nodes_[host].ports[0].queue; }
  // The time that this many bytes take from host to host when no one else sends: packets of
  // `payload` bytes with `header` bytes each.
  ns3::Time fastest(NodeId from, NodeId to, uint64_t bytes, uint32_t payload,
                    uint32_t header) const;

  struct Counts {
    uint64_t packets = 0;
    uint64_t dropped = 0;
    uint64_t marked = 0;
  };
  // Of all ports, those of hosts included.
  Counts counts() const;
  // The queue length that this share of the packets found at a switch, in bytes.
  uint64_t queue_length(double share) const;

 private:
  static constexpr uint64_t kStep = 1000;  // of the queue lengths that are told apart, in bytes

  struct Port {
    NodeId peer = 0;
    uint64_t gbps = 0;
    ns3::Time delay;
    ns3::Ptr<ns3::QueueDisc> queue;
  };
  struct Member {
    ns3::Ptr<ns3::Node> node;
    ns3::Ptr<EcmpRouting> routing;
    std::vector<Port> ports;
  };
  NodeId add_node();
  void add_port(NodeId id, NodeId peer, ns3::Ptr<ns3::NetDevice> device, uint64_t gbps,
                ns3::Time delay);
  // Links to `host` from each node.
  std::vector<uint32_t> distances(NodeId host) const;
  const Port& next_port(NodeId at, const std::vector<uint32_t>& distance) const;
  static void count_length(Network* network, ns3::QueueDisc* queue,
                           ns3::Ptr<const ns3::QueueDiscItem>);

  QueueShape queues_;
  uint32_t hosts_ = 0;
  std::vector<Member> nodes_;
  std::map<uint64_t, uint64_t> lengths_;  // in steps, and how many packets found each
};

// One switch with all hosts.
void build_star(Network& network, uint32_t hosts, uint64_t gbps, ns3::Time delay);

// Pods of ToR and aggregation switches, and core switches above them. Each ToR is connected to all
// aggregation switches of its pod, and aggregation switch i of each pod to the i-th group of core
// switches. The default is the network of the HPCC paper: 320 hosts.
struct FatTree {
  uint32_t pods = 5;
  uint32_t tors_per_pod = 4;
  uint32_t aggs_per_pod = 4;
  uint32_t cores_per_agg = 4;
  uint32_t hosts_per_tor = 16;
  uint64_t host_gbps = 100;
  uint64_t switch_gbps = 400;
  ns3::Time delay = ns3::MicroSeconds(1);  // of each link

  uint32_t hosts() const { return pods * tors_per_pod * hosts_per_tor; }
};
void build_fat_tree(Network& network, const FatTree& shape);

}  // namespace verbena::scale
