// A host that floods this one with connection messages: REJs without a communication ID, which go
// to every process. They have a correct ICRC.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <vector>

#include "cm/mad.h"
#include "core/management_port.h"
#include "os/unique_fd.h"
#include "wire/icrc.h"
#include "wire/packet.h"

namespace verbena::test {

class RejSender {
 public:
  // Its sockets have different ports, so that without steering every process of the host gets some.
  explicit RejSender(size_t sockets = 32) : sockets_(sockets) {
    for (os::UniqueFd& socket : sockets_) {
      socket = os::UniqueFd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      const int dont_fragment = IP_PMTUDISC_DO;
      ::setsockopt(socket.get(), IPPROTO_IP, IP_MTU_DISCOVER, &dont_fragment, sizeof dont_fragment);
      const sockaddr_in from = loopback(0);
      EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
      sockaddr_in name{};
      socklen_t bytes = sizeof name;
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &bytes);
      datagrams_.push_back(rej(ntohs(name.sin_port)));
    }
  }

  void send(size_t count) {
    const sockaddr_in to = loopback(wire::kRoceUdpPort);
    for (size_t i = 0; i < count; ++i, ++sent_) {
      const Datagram& datagram = datagrams_[sent_ % sockets_.size()];
      ::sendto(sockets_[sent_ % sockets_.size()].get(), datagram.data(), datagram.size(), 0,
               reinterpret_cast<const sockaddr*>(&to), sizeof to);
    }
  }

 private:
  using Datagram = std::array<std::byte, core::ManagementDatagram::kHeaderBytes + core::kMadBytes +
                                             wire::kIcrcBytes>;

  static sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  static Datagram rej(uint16_t source_port) {
    wire::Packet p;
    p.bth.opcode = static_cast<uint8_t>(wire::Opcode::UdSendOnly);
    p.op = wire::info_of(wire::Opcode::UdSendOnly);
    p.bth.destination = wire::kManagementQpn;
    p.deth = {.qkey = core::kManagementQkey, .source = wire::kManagementQpn};
    Datagram datagram{};
    wire::store_headers(p, datagram.data());
    cm::MadHeader header;
    header.attribute = cm::Attribute::Rej;
    header.tid = 1;
    header.store(datagram.data() + core::ManagementDatagram::kHeaderBytes);
    const wire::Gid address = wire::Gid::from_ipv4("\x7F\x00\x00\x01");
    const auto covered = std::span(datagram).first(datagram.size() - wire::kIcrcBytes);
    const wire::IcrcFlow flow{address, address, source_port, wire::kRoceUdpPort};
    wire::store_icrc(covered.data() + covered.size(),
                     wire::icrc_over_bth(wire::icrc_prefix(flow, datagram.size()), covered));
    return datagram;
  }

  std::vector<os::UniqueFd> sockets_;
  std::vector<Datagram> datagrams_;
  size_t sent_ = 0;
};

}  // namespace verbena::test
