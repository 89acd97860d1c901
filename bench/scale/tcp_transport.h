// TcpTransport: ns-3's TCP, for comparison. Each flow is a connection, opened before the flow
// begins, as a queue pair is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/scale/flows.h"
#include "bench/scale/network.h"
#include "ns3/socket.h"

namespace verbena::scale {

class TcpTransport final : public Transport {
 public:
  // `algorithm`: the name of a class of ns-3, as TcpDctcp. A segment has `segment_bytes`.
  TcpTransport(const Network& network, const std::string& algorithm, uint32_t segment_bytes,
               OnEnd on_end);

  void open(uint32_t number, const Flow& flow) override;
  ns3::Time lead() const override { return ns3::MicroSeconds(200); }

 private:
  static constexpr uint16_t kPort = 5001;

  struct Connection {
    uint64_t bytes = 0;
    uint64_t to_send = 0;
    uint64_t to_receive = 0;
    ns3::Ptr<ns3::Socket> sender;
    ns3::Ptr<ns3::Socket> receiver;
    bool connected = false;
    bool begun = false;
  };
  void fill(uint32_t number);
  void begin(uint32_t number);
  void on_connected(uint32_t number);
  void on_accept(ns3::Ptr<ns3::Socket> socket, const ns3::Address& from);
  void on_readable(uint32_t number);

  const Network& network_;
  OnEnd on_end_;
  std::vector<Connection> connections_;                        // by flow
  std::vector<ns3::Ptr<ns3::Socket>> listeners_;               // by host
  std::map<std::pair<uint32_t, uint16_t>, uint32_t> opening_;  // flow, by the sender's address
};

}  // namespace verbena::scale
