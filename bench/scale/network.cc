// Links, queues and shortest paths.
#include "bench/scale/network.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "ns3/boolean.h"
#include "ns3/double.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-interface-address.h"
#include "ns3/ipv4-routing-helper.h"
#include "ns3/ipv4.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/string.h"
#include "ns3/traffic-control-helper.h"
#include "ns3/uinteger.h"

namespace verbena::scale {
namespace {

constexpr uint32_t kUnreachable = UINT32_MAX;

class EcmpHelper : public ns3::Ipv4RoutingHelper {
 public:
  EcmpHelper* Copy() const override { return new EcmpHelper(*this); }
  ns3::Ptr<ns3::Ipv4RoutingProtocol> Create(ns3::Ptr<ns3::Node>) const override {
    return ns3::CreateObject<EcmpRouting>();
  }
};

std::string bytes_text(uint64_t bytes) { return std::to_string(bytes) + "B"; }

}  // namespace

Network::NodeId Network::add_node() {
  const auto id = static_cast<NodeId>(nodes_.size());
  Member member{.node = ns3::CreateObject<ns3::Node>(), .routing = {}, .ports = {}};
  ns3::InternetStackHelper stack;
  stack.SetIpv6StackInstall(false);
  stack.SetRoutingHelper(EcmpHelper());
  stack.Install(member.node);
  member.routing =
      ns3::DynamicCast<EcmpRouting>(member.node->GetObject<ns3::Ipv4>()->GetRoutingProtocol());
  member.routing->set_node(id);
  nodes_.push_back(member);
  return id;
}

void Network::add_hosts(uint32_t count) {
  VERBENA_CHECK(nodes_.size() == hosts_);  // before the switches
  for (uint32_t i = 0; i < count; ++i) add_node();
  hosts_ += count;
}

Network::NodeId Network::add_switch() { return add_node(); }

void Network::connect(NodeId a, NodeId b, uint64_t gbps, ns3::Time delay) {
  ns3::PointToPointHelper link;
  link.SetDeviceAttribute("DataRate", ns3::StringValue(std::to_string(gbps) + "Gbps"));
  link.SetDeviceAttribute("Mtu", ns3::UintegerValue(9000));
  link.SetChannelAttribute("Delay", ns3::TimeValue(delay));
  // Packets wait in the queue that marks, not behind it.
  link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", ns3::StringValue("1p"));
  const ns3::NetDeviceContainer devices = link.Install(nodes_[a].node, nodes_[b].node);
  add_port(a, b, devices.Get(0), gbps, delay);
  add_port(b, a, devices.Get(1), gbps, delay);
}

void Network::add_port(NodeId id, NodeId peer, ns3::Ptr<ns3::NetDevice> device, uint64_t gbps,
                       ns3::Time delay) {
  Member& member = nodes_[id];
  const auto mark = static_cast<double>(queues_.mark_bytes_per_gbps * gbps);
  ns3::TrafficControlHelper control;
  // The weight 1 is that of DCTCP's authors: the threshold applies to the present length.
  control.SetRootQueueDisc(
      "ns3::RedQueueDisc", "UseEcn", ns3::BooleanValue(true), "UseHardDrop",
      ns3::BooleanValue(false), "Gentle", ns3::BooleanValue(false), "QW", ns3::DoubleValue(1),
      "MinTh", ns3::DoubleValue(mark), "MaxTh", ns3::DoubleValue(mark), "MaxSize",
      ns3::StringValue(bytes_text(queues_.bytes_per_gbps * gbps)), "LinkBandwidth",
      ns3::StringValue(std::to_string(gbps) + "Gbps"), "LinkDelay", ns3::TimeValue(delay));
  const ns3::Ptr<ns3::QueueDisc> queue = control.Install(device).Get(0);
  if (id >= hosts_) {
    queue->TraceConnectWithoutContext(
        "Enqueue", ns3::MakeBoundCallback(&Network::count_length, this, ns3::PeekPointer(queue)));
  }

  const auto ipv4 = member.node->GetObject<ns3::Ipv4>();
  const uint32_t interface = ipv4->AddInterface(device);
  ns3::Ipv4Address source = ns3::Ipv4Address::GetZero();
  if (id < hosts_) {
    source = address_of(id);
    ipv4->AddAddress(interface, {source, ns3::Ipv4Mask::GetOnes()});
  }
  ipv4->SetUp(interface);
  member.routing->add_port(device, source);
  member.ports.push_back({peer, gbps, delay, queue});
}

std::vector<uint32_t> Network::distances(NodeId host) const {
  std::vector<uint32_t> distance(nodes_.size(), kUnreachable);
  std::vector<NodeId> reached{host};
  distance[host] = 0;
  for (size_t i = 0; i < reached.size(); ++i) {
    for (const Port& port : nodes_[reached[i]].ports) {
      if (distance[port.peer] != kUnreachable) continue;
      distance[port.peer] = distance[reached[i]] + 1;
      reached.push_back(port.peer);
    }
  }
  return distance;
}

void Network::compute_routes() {
  for (NodeId host = 0; host < hosts_; ++host) {
    const std::vector<uint32_t> distance = distances(host);
    for (NodeId id = hosts_; id < nodes_.size(); ++id) {
      std::vector<uint32_t> ports;
      for (uint32_t i = 0; i < nodes_[id].ports.size(); ++i) {
        if (distance[nodes_[id].ports[i].peer] < distance[id]) ports.push_back(i);
      }
      nodes_[id].routing->add_destination(std::move(ports));
    }
  }
}

const Network::Port& Network::next_port(NodeId at, const std::vector<uint32_t>& distance) const {
  return *std::ranges::find_if(
      nodes_[at].ports, [&](const Port& port) { return distance[port.peer] < distance[at]; });
}

ns3::Time Network::fastest(NodeId from, NodeId to, uint64_t bytes, uint32_t payload,
                           uint32_t header) const {
  const std::vector<uint32_t> distance = distances(to);
  const uint64_t packets = (bytes + payload - 1) / payload;
  const uint64_t first = std::min<uint64_t>(bytes, payload) + header;
  const uint64_t rest = bytes + packets * header - first;
  double ns = 0;
  uint64_t slowest = UINT64_MAX;
  for (NodeId at = from; at != to;) {
    const Port& port = next_port(at, distance);
    ns += static_cast<double>(port.delay.GetNanoSeconds());
    ns += static_cast<double>(first * 8) / static_cast<double>(port.gbps);
    slowest = std::min(slowest, port.gbps);
    at = port.peer;
  }
  ns += static_cast<double>(rest * 8) / static_cast<double>(slowest);
  return ns3::NanoSeconds(static_cast<int64_t>(ns));
}

Network::Counts Network::counts() const {
  Counts counts;
  for (const Member& member : nodes_) {
    for (const Port& port : member.ports) {
      const ns3::QueueDisc::Stats& stats = port.queue->GetStats();
      counts.packets += stats.nTotalReceivedPackets;
      counts.dropped += stats.nTotalDroppedPackets;
      counts.marked += stats.nTotalMarkedPackets;
    }
  }
  return counts;
}

void Network::count_length(Network* network, ns3::QueueDisc* queue,
                           ns3::Ptr<const ns3::QueueDiscItem>) {
  ++network->lengths_[queue->GetNBytes() / kStep];
}

uint64_t Network::queue_length(double share) const {
  uint64_t all = 0;
  for (const auto& [length, count] : lengths_) all += count;
  uint64_t seen = 0;
  for (const auto& [length, count] : lengths_) {
    seen += count;
    if (static_cast<double>(seen) >= share * static_cast<double>(all)) return length * kStep;
  }
  return 0;
}

void build_star(Network& network, uint32_t hosts, uint64_t gbps, ns3::Time delay) {
  network.add_hosts(hosts);
  const Network::NodeId middle = network.add_switch();
  for (uint32_t i = 0; i < hosts; ++i) network.connect(i, middle, gbps, delay);
  network.compute_routes();
}

void build_fat_tree(Network& network, const FatTree& shape) {
  network.add_hosts(shape.hosts());
  std::vector<Network::NodeId> cores;
  for (uint32_t i = 0; i < shape.aggs_per_pod * shape.cores_per_agg; ++i) {
    cores.push_back(network.add_switch());
  }
  Network::NodeId next_host = 0;
  for (uint32_t pod = 0; pod < shape.pods; ++pod) {
    std::vector<Network::NodeId> aggs;
    for (uint32_t i = 0; i < shape.aggs_per_pod; ++i) {
      aggs.push_back(network.add_switch());
      for (uint32_t j = 0; j < shape.cores_per_agg; ++j) {
        network.connect(aggs.back(), cores[i * shape.cores_per_agg + j], shape.switch_gbps,
                        shape.delay);
      }
    }
    for (uint32_t i = 0; i < shape.tors_per_pod; ++i) {
      const Network::NodeId tor = network.add_switch();
      for (const Network::NodeId agg : aggs) {
        network.connect(tor, agg, shape.switch_gbps, shape.delay);
      }
      for (uint32_t j = 0; j < shape.hosts_per_tor; ++j) {
        network.connect(next_host++, tor, shape.host_gbps, shape.delay);
      }
    }
  }
  network.compute_routes();
}

}  // namespace verbena::scale
