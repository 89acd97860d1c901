// Feeds and drains connections.
#include "bench/scale/tcp_transport.h"

#include <algorithm>

#include "base/check.h"
#include "ns3/boolean.h"
#include "ns3/config.h"
#include "ns3/inet-socket-address.h"
#include "ns3/packet.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-socket-factory.h"
#include "ns3/uinteger.h"

namespace verbena::scale {
namespace {

constexpr uint32_t kBufferBytes = 4 << 20;
constexpr uint32_t kChunk = 64 * 1024;

// Settings of a data centre. Those of ns-3 are for long paths: retransmission after a second.
void configure(const std::string& algorithm, uint32_t segment_bytes) {
  using ns3::Config::SetDefault;
  SetDefault("ns3::TcpL4Protocol::SocketType",
             ns3::TypeIdValue(ns3::TypeId::LookupByName("ns3::" + algorithm)));
  SetDefault("ns3::TcpSocketBase::UseEcn", ns3::StringValue("On"));
  SetDefault("ns3::TcpSocketBase::MinRto", ns3::TimeValue(ns3::MilliSeconds(1)));
  SetDefault("ns3::TcpSocketBase::ClockGranularity", ns3::TimeValue(ns3::MicroSeconds(10)));
  SetDefault("ns3::TcpSocketBase::Timestamp", ns3::BooleanValue(false));
  SetDefault("ns3::TcpSocket::ConnTimeout", ns3::TimeValue(ns3::MilliSeconds(1)));
  SetDefault("ns3::TcpSocket::SegmentSize", ns3::UintegerValue(segment_bytes));
  SetDefault("ns3::TcpSocket::SndBufSize", ns3::UintegerValue(kBufferBytes));
  SetDefault("ns3::TcpSocket::RcvBufSize", ns3::UintegerValue(kBufferBytes));
  SetDefault("ns3::TcpSocket::InitialCwnd", ns3::UintegerValue(10));
  SetDefault("ns3::TcpSocket::DelAckCount", ns3::UintegerValue(1));
  SetDefault("ns3::RttEstimator::InitialEstimation", ns3::TimeValue(ns3::MicroSeconds(100)));
}

}  // namespace

TcpTransport::TcpTransport(const Network& network, const std::string& algorithm,
                           uint32_t segment_bytes, OnEnd on_end)
    : network_(network), on_end_(std::move(on_end)) {
  configure(algorithm, segment_bytes);
  for (uint32_t i = 0; i < network.host_count(); ++i) {
    network.node(i)->GetObject<ns3::TcpL4Protocol>()->SetAttribute(
        "SocketType", ns3::TypeIdValue(ns3::TypeId::LookupByName("ns3::" + algorithm)));
    const auto listener =
        ns3::Socket::CreateSocket(network.node(i), ns3::TcpSocketFactory::GetTypeId());
    VERBENA_CHECK(listener->Bind(ns3::InetSocketAddress(network.address_of(i), kPort)) == 0);
    listener->Listen();
    listener->SetAcceptCallback(
        ns3::MakeNullCallback<bool, ns3::Ptr<ns3::Socket>, const ns3::Address&>(),
        ns3::MakeCallback(&TcpTransport::on_accept, this));
    listeners_.push_back(listener);
  }
}

void TcpTransport::open(uint32_t number, const Flow& flow) {
  connections_.resize(std::max<size_t>(connections_.size(), number + 1));
  Connection& connection = connections_[number];
  connection.bytes = connection.to_send = connection.to_receive = flow.bytes;
  connection.sender =
      ns3::Socket::CreateSocket(network_.node(flow.source), ns3::TcpSocketFactory::GetTypeId());
  connection.sender->Bind(ns3::InetSocketAddress(network_.address_of(flow.source), 0));
  ns3::Address local;
  connection.sender->GetSockName(local);
  const auto address = ns3::InetSocketAddress::ConvertFrom(local);
  opening_[{address.GetIpv4().Get(), address.GetPort()}] = number;
  connection.sender->SetConnectCallback(
      [this, number](ns3::Ptr<ns3::Socket>) { on_connected(number); },
      [this, number](ns3::Ptr<ns3::Socket>) { on_end_(number, false); });
  connection.sender->SetSendCallback(
      [this, number](ns3::Ptr<ns3::Socket>, uint32_t) { fill(number); });
  connection.sender->Connect(ns3::InetSocketAddress(network_.address_of(flow.destination), kPort));
  ns3::Simulator::Schedule(flow.start - ns3::Simulator::Now(), &TcpTransport::begin, this, number);
}

void TcpTransport::begin(uint32_t number) {
  connections_[number].begun = true;
  fill(number);
}

void TcpTransport::on_connected(uint32_t number) {
  connections_[number].connected = true;
  ns3::Simulator::ScheduleNow(&TcpTransport::fill, this, number);
}

void TcpTransport::fill(uint32_t number) {
  Connection& connection = connections_[number];
  if (!connection.begun || !connection.connected) return;
  while (connection.to_send != 0) {
    const auto bytes = static_cast<uint32_t>(
        std::min<uint64_t>({connection.to_send, kChunk, connection.sender->GetTxAvailable()}));
    if (bytes == 0) return;
    const int sent = connection.sender->Send(ns3::Create<ns3::Packet>(bytes));
    if (sent <= 0) return;
    connection.to_send -= static_cast<uint64_t>(sent);
    if (connection.to_send == 0) connection.sender->Close();
  }
}

void TcpTransport::on_accept(ns3::Ptr<ns3::Socket> socket, const ns3::Address& from) {
  const auto address = ns3::InetSocketAddress::ConvertFrom(from);
  const auto found = opening_.find({address.GetIpv4().Get(), address.GetPort()});
  VERBENA_CHECK(found != opening_.end());
  const uint32_t number = found->second;
  opening_.erase(found);
  connections_[number].receiver = socket;
  socket->SetRecvCallback([this, number](ns3::Ptr<ns3::Socket>) { on_readable(number); });
}

void TcpTransport::on_readable(uint32_t number) {
  Connection& connection = connections_[number];
  while (const ns3::Ptr<ns3::Packet> packet = connection.receiver->Recv()) {
    if (packet->GetSize() == 0) break;
    connection.to_receive -= packet->GetSize();
    if (connection.to_receive == 0) {
      connection.receiver->Close();
      on_end_(number, true);
    }
  }
}

}  // namespace verbena::scale
