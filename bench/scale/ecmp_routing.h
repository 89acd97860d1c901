// EcmpRouting: forwards each flow over one of the shortest paths, which a hash of its addresses and
// ports chooses (ECMP). ns-3's global routing chooses for each packet, which reorders a flow.
#pragma once

#include <cstdint>
#include <vector>

#include "ns3/ipv4-route.h"
#include "ns3/ipv4-routing-protocol.h"
#include "ns3/ipv4.h"

namespace verbena::scale {

class EcmpRouting : public ns3::Ipv4RoutingProtocol {
 public:
  static ns3::TypeId GetTypeId();
  // The addresses of hosts are consecutive.
  static constexpr uint32_t kFirstAddress = 0x0A000001;  // 10.0.0.1
  static ns3::Ipv4Address address_of(uint32_t host) {
    return ns3::Ipv4Address(kFirstAddress + host);
  }
  static uint32_t host_of(ns3::Ipv4Address address) { return address.Get() - kFirstAddress; }

  // `node`: makes the hash differ from switch to switch.
  void set_node(uint32_t node) { node_ = node; }
  // The next port, in the order of creation.
  void add_port(ns3::Ptr<ns3::NetDevice> device, ns3::Ipv4Address source);
  // The ports of the shortest paths to this host. Hosts come in order.
  void add_destination(std::vector<uint32_t> ports) { next_.push_back(std::move(ports)); }
  const std::vector<uint64_t>& packets_by_port() const { return packets_; }

  ns3::Ptr<ns3::Ipv4Route> RouteOutput(ns3::Ptr<ns3::Packet> packet, const ns3::Ipv4Header& header,
                                       ns3::Ptr<ns3::NetDevice> device,
                                       ns3::Socket::SocketErrno& error) override;
  bool RouteInput(ns3::Ptr<const ns3::Packet> packet, const ns3::Ipv4Header& header,
                  ns3::Ptr<const ns3::NetDevice> device, UnicastForwardCallback forward,
                  MulticastForwardCallback, LocalDeliverCallback deliver, ErrorCallback) override;
  void NotifyInterfaceUp(uint32_t) override {}
  void NotifyInterfaceDown(uint32_t) override {}
  void NotifyAddAddress(uint32_t, ns3::Ipv4InterfaceAddress) override {}
  void NotifyRemoveAddress(uint32_t, ns3::Ipv4InterfaceAddress) override {}
  void SetIpv4(ns3::Ptr<ns3::Ipv4> ipv4) override { ipv4_ = ipv4; }
  void PrintRoutingTable(ns3::Ptr<ns3::OutputStreamWrapper>, ns3::Time::Unit) const override {}

 private:
  uint32_t choose(const ns3::Packet& packet, const ns3::Ipv4Header& header) const;

  ns3::Ptr<ns3::Ipv4> ipv4_;
  uint32_t node_ = 0;
  ns3::Ipv4Address own_;                          // a host's; otherwise unspecified
  std::vector<ns3::Ptr<ns3::Ipv4Route>> routes_;  // by port
  std::vector<uint64_t> packets_;                 // forwarded, by port
  std::vector<std::vector<uint32_t>> next_;       // by destination
};

}  // namespace verbena::scale
