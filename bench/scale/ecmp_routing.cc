// The choice of a port.
#include "bench/scale/ecmp_routing.h"

#include <array>

#include "base/prng.h"
#include "ns3/ipv4-header.h"
#include "ns3/net-device.h"
#include "ns3/packet.h"

namespace verbena::scale {

ns3::TypeId EcmpRouting::GetTypeId() {
  static const ns3::TypeId id =
      ns3::TypeId("verbena::EcmpRouting").SetParent<ns3::Ipv4RoutingProtocol>();
  return id;
}

void EcmpRouting::add_port(ns3::Ptr<ns3::NetDevice> device, ns3::Ipv4Address source) {
  const auto route = ns3::Create<ns3::Ipv4Route>();
  route->SetSource(source);
  route->SetGateway(ns3::Ipv4Address::GetZero());
  route->SetOutputDevice(device);
  routes_.push_back(route);
  packets_.push_back(0);
  own_ = source;
}

ns3::Ptr<ns3::Ipv4Route> EcmpRouting::RouteOutput(ns3::Ptr<ns3::Packet>, const ns3::Ipv4Header&,
                                                  ns3::Ptr<ns3::NetDevice>,
                                                  ns3::Socket::SocketErrno& error) {
  error = ns3::Socket::ERROR_NOTERROR;
  return routes_.front();  // a host has one port
}

bool EcmpRouting::RouteInput(ns3::Ptr<const ns3::Packet> packet, const ns3::Ipv4Header& header,
                             ns3::Ptr<const ns3::NetDevice> device, UnicastForwardCallback forward,
                             MulticastForwardCallback, LocalDeliverCallback deliver,
                             ErrorCallback) {
  if (header.GetDestination() == own_) {
    deliver(packet, header, static_cast<uint32_t>(ipv4_->GetInterfaceForDevice(device)));
    return true;
  }
  if (host_of(header.GetDestination()) >= next_.size()) return false;
  const uint32_t port = choose(*packet, header);
  ++packets_[port];
  forward(routes_[port], packet, header);
  return true;
}

uint32_t EcmpRouting::choose(const ns3::Packet& packet, const ns3::Ipv4Header& header) const {
  const std::vector<uint32_t>& ports = next_[host_of(header.GetDestination())];
  if (ports.size() == 1) return ports.front();
  std::array<uint8_t, 4> l4{};  // source and destination port, of UDP and of TCP
  packet.CopyData(l4.data(), l4.size());
  const uint64_t addresses =
      uint64_t{header.GetSource().Get()} << 32 | header.GetDestination().Get();
  const uint64_t l4_ports = uint64_t{l4[0]} << 24 | l4[1] << 16 | l4[2] << 8 | l4[3];
  const uint64_t first = Prng(addresses).next();
  const uint64_t hash = Prng(first ^ (l4_ports << 16 | node_)).next();
  return ports[hash % ports.size()];
}

}  // namespace verbena::scale
