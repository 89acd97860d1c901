// The UDP datapath over the loopback interface: delivery of packets, and error reports.
#include "datapath/udp/udp_datapath.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "datapath/udp/udp_socket.h"
#include "tests/runtime/udp_process.h"
#include "tests/support/needs_steering.h"
#include "wire/icrc.h"

namespace verbena::datapath {
namespace {

void exchange(const Gid& address) {
  Process a;
  Process b;
  ASSERT_NE(a.slot(), b.slot());
  ASSERT_TRUE(b.udp->listen(address).ok());
  const auto path = a.path_to(b, address, address);
  for (const size_t bytes : {0, 1, 2, 3, 4, 255, 256, 511, 513, 1024, 4096}) {
    a.push(path, b.slot(), static_cast<uint32_t>(bytes), bytes);
  }
  a.udp->flush();
  ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= 11; }));
  for (size_t i = 0; i < b.packets.size(); ++i) {
    EXPECT_TRUE(b.intact(i)) << i;
    EXPECT_EQ(b.metas[i].source, address);
    EXPECT_EQ(b.metas[i].destination, address);
    EXPECT_EQ(b.metas[i].hop_limit, 64);
    EXPECT_EQ(b.metas[i].traffic_class, 0);
  }
  EXPECT_EQ(a.counter("udp_icrc_errors") + b.counter("udp_icrc_errors"), 0u);
  EXPECT_EQ(b.counter("udp_icrc_solved"), 0u);
}

TEST(UdpDatapath, DeliversPacketsOverIpv4) { exchange(kLoopback4); }
TEST(UdpDatapath, DeliversPacketsOverIpv6) { exchange(ipv6("::1")); }

// After an ICMP error the kernel fails the next send of the socket, to any destination.
TEST(UdpDatapath, AnIcmpErrorFailsNoOtherSend) {
  Process a;
  Process b;
  const Process absent;  // has no socket
  const Gid addresses[] = {kLoopback4, ipv4("127.0.0.2")};
  ASSERT_TRUE(b.udp->listen(kLoopback4).ok());
  wire::PathId unused[2];
  wire::PathId path[2];
  for (int i = 0; i < 2; ++i) {
    unused[i] = a.path_to(absent, addresses[i], ipv4("127.0.0.9"));
    path[i] = a.path_to(b, addresses[i], kLoopback4);
  }
  complete_steering({&a, &b});
  a.udp->report_unreachable_hosts(true);
  for (const auto& paths : {unused, path}) {
    const uint8_t slot = paths == path ? b.slot() : absent.slot();
    for (uint32_t i = 0; i < 2; ++i) a.push(paths[i], slot, i, 100);
    a.udp->flush();
  }
  EXPECT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= 2; })) << b.packets.size();
  EXPECT_EQ(a.counter("udp_send_drops"), 0u);
  EXPECT_EQ(a.udp->take_warning(), std::nullopt);
}

TEST(UdpDatapath, TrafficClassAndHopLimitBelongToThePath) {
  for (const Gid& address : {kLoopback4, ipv6("::1")}) {
    Process a;
    ASSERT_TRUE(a.udp->listen(address).ok());
    wire::Route route;
    route.source = route.destination = address;
    route.peer = Qpn::of_slot(a.slot(), 1);
    route.traffic_class = 0x6A;  // DSCP 26, ECT(0)
    route.hop_limit = 9;
    auto path = a.udp->open_path(route);
    ASSERT_TRUE(path.ok());
    a.push(path.value(), a.slot(), 1, 64);
    a.push(path.value(), a.slot(), 2, 64);
    a.udp->flush();
    ASSERT_TRUE(run({&a}, [&] { return a.packets.size() >= 2; }));
    EXPECT_EQ(a.metas[0].hop_limit, 64) << "headers are not reported yet";

    a.udp->report_ip_headers();
    route.traffic_class = 0;
    route.hop_limit = 200;
    auto other = a.udp->open_path(route);
    ASSERT_TRUE(other.ok());
    a.push(path.value(), a.slot(), 3, 64);
    a.push(other.value(), a.slot(), 4, 64);
    a.udp->flush();
    ASSERT_TRUE(run({&a}, [&] { return a.packets.size() >= 4; }));
    EXPECT_EQ(a.metas[2].traffic_class, 0x6A);
    EXPECT_EQ(a.metas[2].hop_limit, 9);
    EXPECT_EQ(a.metas[3].traffic_class, 0);
    EXPECT_EQ(a.metas[3].hop_limit, 200);
  }
}

// All packets have the same size, so they would share a GSO batch, which has one IP header.
TEST(UdpDatapath, APacketThatIsNotEcnCapableLeavesWithoutTheEcnBits) {
  for (const Gid& address : {kLoopback4, ipv6("::1")}) {
    Process a;
    ASSERT_TRUE(a.udp->listen(address).ok());
    a.udp->report_ip_headers();
    wire::Route route;
    route.source = route.destination = address;
    route.peer = Qpn::of_slot(a.slot(), 1);
    route.traffic_class = 0x6A;  // DSCP 26, ECT(0)
    auto path = a.udp->open_path(route);
    ASSERT_TRUE(path.ok());
    for (uint32_t psn = 0; psn < 6; ++psn) {
      const bool ecn_capable = psn != 0 && psn != 3;
      a.push(path.value(), a.slot(), psn, 64, true, false, ecn_capable);
    }
    a.udp->flush();
    ASSERT_TRUE(run({&a}, [&] { return a.packets.size() >= 6; }));
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(a.intact(i));
      const bool ecn_capable = a.psn(i) != 0 && a.psn(i) != 3;
      EXPECT_EQ(a.metas[i].traffic_class, ecn_capable ? 0x6A : 0x68) << a.psn(i);
    }
  }
}

// Reading the marks costs time, which paths on this host do not need.
TEST(UdpDatapath, ReportsEcnMarksOnceAPathLeadsToAnotherHost) {
  if (std::system("ip route add 198.51.100.0/24 dev lo && ip route add 2001:db8::/64 dev lo") != 0)
    GTEST_SKIP() << "cannot add routes to this network namespace";
  const std::pair<Gid, Gid> addresses[] = {{kLoopback4, ipv4("198.51.100.1")},
                                           {ipv6("::1"), ipv6("2001:db8::1")}};
  for (const auto& [here, there] : addresses) {
    Process a;
    wire::Route route;
    route.source = route.destination = here;
    route.peer = Qpn::of_slot(a.slot(), 1);
    route.traffic_class = 0x6B;  // DSCP 26, CE
    auto path = a.udp->open_path(route);
    ASSERT_TRUE(path.ok());
    complete_steering({&a});
    const auto class_of_received = [&] {
      a.metas.clear();
      for (uint32_t psn = 0; psn < 3; ++psn) a.push(path.value(), a.slot(), psn, 64);
      a.udp->flush();
      EXPECT_TRUE(run({&a}, [&] { return a.metas.size() >= 3; }));
      return a.metas.back().traffic_class;
    };
    EXPECT_EQ(class_of_received(), 0);
    route.destination = there;
    ASSERT_TRUE(a.udp->open_path(route).ok());
    EXPECT_EQ(class_of_received(), 0x6B);
  }
  EXPECT_EQ(std::system("ip route del 198.51.100.0/24; ip route del 2001:db8::/64"), 0);
}

TEST(UdpSocket, ThePriorityOfPacketsFollowsTheirDscp) {
  for (const Gid& address : {kLoopback4, ipv6("::1")}) {
    auto socket = open_send_socket({address, 0}, {}, 0);
    ASSERT_TRUE(socket.ok());
    const int fd = socket.value().fd.get();
    // DSCP 0, 26 and 48; 63 would need a privilege for its priority 7.
    const std::pair<uint8_t, int> expected[] = {{0x02, 0}, {0x6A, 3}, {0xC0, 6}, {0xFC, 6}};
    for (const auto& [traffic_class, priority] : expected) {
      set_traffic_class(fd, {address, 0}, traffic_class);
      int value = -1;
      socklen_t bytes = sizeof value;
      ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value, &bytes), 0);
      EXPECT_EQ(value, priority);
      const bool v4 = address.is_ipv4();
      ASSERT_EQ(::getsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, &value,
                             &bytes),
                0);
      EXPECT_EQ(value, traffic_class);
    }
  }
}

TEST(UdpDatapath, CountsAndDropsInvalidPackets) {
  Process a;
  ASSERT_TRUE(a.udp->listen(kLoopback4).ok());
  complete_steering({&a});
  auto send = open_send_socket({kLoopback4, 0}, {}, 0);
  ASSERT_TRUE(send.ok());
  const auto to = host::SocketAddress::of({kLoopback4, 0}, wire::kRoceUdpPort);
  std::vector<std::byte> bytes(60'000, std::byte{0x5A});
  for (const size_t n : {0, 1, 11, 12, 15, 16, 24, 100, 4096, 60'000}) {
    for (const int opcode : {0, 4, 0xFF}) {
      bytes[0] = static_cast<std::byte>(opcode);
      ::sendto(send.value().fd.get(), bytes.data(), n, 0, to.get(), to.bytes);
    }
  }
  complete_steering({&a});
  EXPECT_EQ(a.counter("udp_too_short"), 4u * 3);
  EXPECT_EQ(a.counter("udp_icrc_errors"), 5u * 3);
  EXPECT_EQ(a.counter("udp_packets_received"), 0u);
}

TEST(UdpDatapath, SolvesTheIpIdOfAnotherSender) {
  Process a;
  ASSERT_TRUE(a.udp->listen(kLoopback4).ok());
  complete_steering({&a});
  auto send = open_send_socket({kLoopback4, 0}, {}, 0);
  ASSERT_TRUE(send.ok());
  const wire::IcrcFlow flow{kLoopback4, kLoopback4, send.value().port, wire::kRoceUdpPort};
  std::vector<std::byte> p(64);
  wire::Bth bth;
  bth.opcode = static_cast<uint8_t>(wire::Opcode::RcSendOnly);
  bth.destination = Qpn::of_slot(a.slot(), 1);
  bth.store(p.data());
  // This kernel writes IP ID 0. The ICRC covers another ID.
  const uint32_t prefix = wire::icrc_prefix_with_id(wire::icrc_prefix(flow, p.size()), 99);
  wire::store_icrc(p.data() + 60, wire::icrc_over_bth(prefix, {p.data(), 60}));
  const auto to = host::SocketAddress::of({kLoopback4, 0}, wire::kRoceUdpPort);
  ::sendto(send.value().fd.get(), p.data(), p.size(), 0, to.get(), to.bytes);
  ASSERT_TRUE(run({&a}, [&] { return a.packets.size() == 1; }));
  EXPECT_EQ(a.counter("udp_icrc_solved"), 1u);
}

TEST(UdpDatapath, ReportsThatThePortIsInUse) {
  // Another program that does not share the port.
  const os::UniqueFd other(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto address = host::SocketAddress::of({ipv4("127.0.0.77"), 0}, wire::kRoceUdpPort);
  ASSERT_EQ(::bind(other.get(), address.get(), address.bytes), 0);
  Process a;
  const Status status = a.udp->listen(ipv4("127.0.0.77"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, EADDRINUSE);
  EXPECT_NE(std::strstr(status.error().why, "4791"), nullptr);
  EXPECT_NE(std::strstr(status.error().why, "rdma_rxe"), nullptr);
}

TEST(UdpDatapath, RejectsInvalidRoutes) {
  Process a;
  wire::Route route;
  route.source = kLoopback4;
  route.destination = ipv6("::1");
  EXPECT_EQ(a.udp->open_path(route).error().code, EINVAL);
  route.source = ipv4("203.0.113.9");  // not an address of this host
  route.destination = kLoopback4;
  EXPECT_EQ(a.udp->open_path(route).error().code, EADDRNOTAVAIL);
}

TEST(UdpDatapath, ReusesPathIds) {
  Process a;
  const auto one = a.path_to(a, kLoopback4, kLoopback4);
  const auto two = a.path_to(a, kLoopback4, kLoopback4);
  EXPECT_NE(one, two);
  a.push(one, a.slot(), 5, 10);
  a.udp->close_path(one);
  a.push(one, a.slot(), 6, 10);  // a closed path drops packets
  a.udp->flush();
  EXPECT_EQ(a.counter("udp_send_drops"), 1u);
  EXPECT_EQ(a.path_to(a, kLoopback4, kLoopback4), one);
  EXPECT_TRUE(run({&a}, [&] { return a.packets.size() == 1; }));
}

TEST(UdpDatapath, ServesSeveralAddresses) {
  Process a;
  const Gid addresses[] = {kLoopback4, ipv4("127.0.0.2"), ipv6("::1")};
  std::vector<wire::PathId> paths;
  for (const Gid& g : addresses) paths.push_back(a.path_to(a, g, g));
  complete_steering({&a});
  for (uint32_t i = 0; i < 30; ++i) a.push(paths[i % 3], a.slot(), i, 200);
  a.udp->flush();
  ASSERT_TRUE(run({&a}, [&] { return a.packets.size() >= 30; }));
  for (const Gid& g : addresses) {
    EXPECT_EQ(std::ranges::count(a.metas, g, &wire::RxMeta::destination), 10);
  }
}

TEST(UdpDatapath, TheWaitDescriptorWakesForReceivedAndForwardedPackets) {
  UdpOptions unsteered;
  unsteered.steering = false;
  Process a(unsteered);
  Process b(unsteered);
  const auto path = a.path_to(a, kLoopback4, kLoopback4);
  pollfd p{.fd = a.udp->wait_fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  a.push(path, a.slot(), 1, 8);
  a.udp->flush();
  EXPECT_EQ(::poll(&p, 1, 1000), 1);
  EXPECT_EQ(a.receive(), 1u);
  EXPECT_EQ(::poll(&p, 1, 0), 0);

  // A forwarded packet is received through the slot directory.
  std::vector<std::byte> bytes(16);
  bytes[5] = std::byte{a.slot()};
  ASSERT_EQ(b.directory->forward(a.slot(), {kLoopback4, 0}, {}, bytes, 16), host::Forwarded::Yes);
  EXPECT_EQ(::poll(&p, 1, 1000), 1);
  a.udp->poll_directory();
  EXPECT_TRUE(a.udp->pending());
  EXPECT_EQ(a.receive(), 1u);
  EXPECT_FALSE(a.udp->pending());
  EXPECT_EQ(::poll(&p, 1, 0), 0);
}

TEST(UdpDatapath, DescriptorsAreClosedOnExec) {
  Process a;
  ASSERT_TRUE(a.udp->listen(kLoopback4).ok());
  for (const int fd : {a.udp->wait_fd(), a.directory->fd()}) {
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
}

}  // namespace
}  // namespace verbena::datapath
