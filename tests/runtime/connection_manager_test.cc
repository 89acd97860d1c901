// Connections through the connection manager of real Nics: within a process, and between several.
#include "runtime/connection_manager.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "cm/ip_addressing.h"
#include "datapath/udp/udp_socket.h"
#include "tests/runtime/cm_host_support.h"
#include "tests/support/needs_steering.h"
#include "wire/icrc.h"

namespace verbena::runtime {
namespace {

constexpr uint64_t service(uint16_t port) { return cm::service_id(cm::PortSpace::Tcp, port); }
std::string text(uint64_t service_id) { return std::to_string(service_id); }

uint32_t id_of(const std::string& event, const std::string& kind) {
  unsigned id = 0;
  if (event.rfind(kind + " id ", 0) != 0 ||
      std::sscanf(event.c_str() + kind.size(), " id %u", &id) != 1) {
    ADD_FAILURE() << "instead of " << kind << ": " << event;
  }
  return id;
}

TEST(ConnectionManager, ConnectsWithinAProcess) {
  CmHost host;
  cm::ListenParameters listen;
  listen.service_id = service(7001);
  auto listener = host.manager().listen(listen);
  ASSERT_TRUE(listener.ok()) << listener.error().why;
  auto active = host.manager().connect(host.to(service(7001)));
  ASSERT_TRUE(active.ok()) << active.error().why;

  auto event = host.next_event();
  ASSERT_TRUE(event && event->kind == cm::EventKind::ConnectRequest);
  EXPECT_EQ(event->listener, listener.value());
  const uint32_t passive = event->id;
  auto info = host.manager().info(passive);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().addresses.local_port, 7001);
  EXPECT_EQ(info.value().addresses.peer_port, 40000);
  cm::AcceptParameters accept;
  accept.qpn = wire::Qpn(0x4321);
  ASSERT_TRUE(host.manager().accept(passive, accept).ok());

  event = host.next_event();
  ASSERT_TRUE(event && event->kind == cm::EventKind::ConnectResponse);
  EXPECT_EQ(event->id, active.value());
  EXPECT_EQ(host.manager().info(active.value()).value().remote_qpn, wire::Qpn(0x4321));
  ASSERT_TRUE(host.manager().establish(active.value(), {}).ok());
  event = host.next_event();
  ASSERT_TRUE(event && event->kind == cm::EventKind::Established);
  EXPECT_EQ(event->id, passive);

  ASSERT_TRUE(host.manager().disconnect(active.value(), {}).ok());
  bool ended[2] = {};
  for (int i = 0; i < 2; ++i) {
    event = host.next_event();
    ASSERT_TRUE(event && event->kind == cm::EventKind::Disconnected);
    ended[event->id == active.value()] = true;
  }
  EXPECT_TRUE(ended[0] && ended[1]);
  host.manager().destroy(active.value());
  host.manager().destroy(passive);
  EXPECT_TRUE(host.manager().stop_listening(listener.value()).ok());
  EXPECT_EQ(host.manager().info(passive).error().code, ENOENT);
}

// Connects a client to a listening server, and disconnects.
void connect_and_disconnect(CmProcess& client, CmProcess& server, const std::string& to) {
  const uint32_t active = client.number("connect " + to);
  const uint32_t passive = id_of(server.ask("event"), "connect request");
  EXPECT_EQ(server.ask("accept " + std::to_string(passive)), "ok");
  EXPECT_EQ(id_of(client.ask("event"), "connect response"), active);
  EXPECT_EQ(client.ask("establish " + std::to_string(active)), "ok");
  EXPECT_EQ(id_of(server.ask("event"), "established"), passive);
  EXPECT_EQ(server.ask("disconnect " + std::to_string(passive)), "ok");
  EXPECT_EQ(id_of(client.ask("event"), "disconnected"), active);
  EXPECT_EQ(id_of(server.ask("event"), "disconnected"), passive);
  EXPECT_EQ(server.ask("destroy " + std::to_string(passive)), "ok");
  EXPECT_EQ(client.ask("destroy " + std::to_string(active)), "ok");
}

TEST(ConnectionManager, ConnectsBetweenProcesses) {
  CmProcess server, client, other;
  for (const char* where : {"any", "any4", "127.0.0.1"}) {
    const uint32_t listener = server.number("listen " + text(service(7002)) + " " + where);
    other.number("listen " + text(service(7003)) + " " + where);
    for (int i = 0; i < 5; ++i) {
      connect_and_disconnect(client, server, text(service(7002)));
      connect_and_disconnect(client, other, text(service(7003)));
    }
    EXPECT_EQ(server.ask("stop " + std::to_string(listener)), "ok");
    other.ask("stop 1"), other.ask("stop 2"), other.ask("stop 3");
  }
}

TEST(ConnectionManager, RejectsAPortOfAnotherProcess) {
  auto first = std::make_unique<CmProcess>();
  CmProcess second;
  const std::string in_use = "errno " + std::to_string(EADDRINUSE);
  const std::string port = "listen " + text(service(7004));
  const uint32_t listener = first->number(port + " any");
  EXPECT_EQ(second.ask(port + " any"), in_use);
  EXPECT_EQ(second.ask(port + " any4"), in_use);
  EXPECT_EQ(second.ask(port + " 127.0.0.1"), in_use);
  EXPECT_EQ(first->ask(port + " 127.0.0.1"), in_use);
  EXPECT_EQ(first->ask("stop " + std::to_string(listener)), "ok");

  first->number(port + " 127.0.0.1");
  EXPECT_EQ(second.ask(port + " any"), in_use);
  EXPECT_EQ(second.ask(port + " any4"), in_use);
  EXPECT_EQ(second.ask(port + " 127.0.0.1"), in_use);
  second.number(port + " any6");  // another family
  first->kill();
  second.number(port + " 127.0.0.1");
}

TEST(ConnectionManager, RejectsARequestWithoutAListener) {
  CmProcess client, bystander;
  ASSERT_EQ(bystander.ask("plain"), "ok");
  for (int i = 0; i < 3; ++i) {
    client.number("connect " + text(service(7005)));
    EXPECT_NE(client.ask("event").find(" reason 8 "), std::string::npos);
    client.number("sidr " + text(service(7005)));
    EXPECT_NE(client.ask("event").find(" sidr 1"), std::string::npos);
  }
}

// Whether a sending socket of this process receives ICMP errors.
bool receives_icmp_errors() {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    int is_enabled = 0;
    socklen_t size = sizeof is_enabled;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 &&
        address.ss_family == AF_INET &&
        host::SocketAddress::port_of(address) != wire::kRoceUdpPort &&
        ::getsockopt(fd, IPPROTO_IP, IP_RECVERR, &is_enabled, &size) == 0 && is_enabled != 0) {
      return true;
    }
  }
  return false;
}

TEST(ConnectionManager, RejectsARequestToAHostWithoutRdma) {
  CmHost host;
  cm::ConnectParameters unused = host.to(service(7041));
  const uint8_t absent[] = {127, 0, 0, 9};
  unused.addresses.peer_gid = unused.addresses.peer_ip = wire::Gid::from_ipv4(absent);
  for (int i = 0; i < 2; ++i) {
    auto id = host.manager().connect(unused);
    ASSERT_TRUE(id.ok());
    auto event = host.next_event();
    ASSERT_TRUE(event && event->kind == cm::EventKind::Rejected);
    EXPECT_EQ(event->reason, cm::RejectReason::InvalidServiceId);
    EXPECT_FALSE(receives_icmp_errors());
  }
}

// Sockets receive ICMP errors only while a request is outstanding, and keep none for the next
// request.
TEST(ConnectionManager, ReceivesIcmpErrorsOnlyWhileARequestIsOutstanding) {
  CmHost host;
  cm::ListenParameters listen;
  listen.service_id = service(7042);
  ASSERT_TRUE(host.manager().listen(listen).ok());
  auto active = host.manager().connect(host.to(service(7042)));
  ASSERT_TRUE(active.ok());
  auto event = host.next_event();
  ASSERT_TRUE(event && event->kind == cm::EventKind::ConnectRequest);
  const uint32_t passive = event->id;
  const Instant until = now() + seconds(10);
  while (!receives_icmp_errors() && now() < until) ::usleep(10'000);
  ASSERT_TRUE(receives_icmp_errors());  // since the REQ was retransmitted
  cm::AcceptParameters accept;
  accept.qpn = wire::Qpn(0x4321);
  ASSERT_TRUE(host.manager().accept(passive, accept).ok());
  event = host.next_event();
  ASSERT_TRUE(event && event->kind == cm::EventKind::ConnectResponse);
  ASSERT_TRUE(host.manager().establish(active.value(), {}).ok());
  event = host.next_event();
  ASSERT_TRUE(event && event->kind == cm::EventKind::Established);
  EXPECT_FALSE(receives_icmp_errors());
}

TEST(ConnectionManager, ResolvesServicesBetweenProcesses) {
  CmProcess server, client;
  server.number("listen " + text(service(7006)) + " any");
  const uint32_t resolving = client.number("sidr " + text(service(7006)));
  const uint32_t request = id_of(server.ask("event"), "SIDR request");
  EXPECT_EQ(server.ask("reply " + std::to_string(request)), "ok");
  EXPECT_EQ(id_of(client.ask("event"), "SIDR response"), resolving);
}

// Once all processes know each other, the kernel delivers every datagram to its process and none is
// forwarded.
TEST(ConnectionManager, SteeringDeliversToTheRightProcess) {
  VERBENA_NEEDS_STEERING();
  CmProcess servers[4];
  CmProcess client;
  const auto port = [](size_t i) { return text(service(static_cast<uint16_t>(7010 + i))); };
  for (size_t i = 0; i < 4; ++i) servers[i].number("listen " + port(i) + " any");
  const auto forwarded = [&] {
    uint32_t sum = client.number("counter udp_misrouted_forwarded");
    for (CmProcess& server : servers) sum += server.number("counter udp_misrouted_forwarded");
    return sum;
  };
  const auto connect_to_all = [&] {
    const uint32_t before = forwarded();
    for (size_t i = 0; i < 4; ++i) connect_and_disconnect(client, servers[i], port(i));
    return forwarded() - before;
  };
  uint32_t forwards = connect_to_all();
  for (int i = 0; i < 20 && forwards != 0; ++i) forwards = connect_to_all();
  EXPECT_EQ(forwards, 0u);
}

// The only process of an address receives everything anyway.
TEST(ConnectionManager, RepeatedListenOfAnOnlyProcessDoesNotUpdateSteering) {
  CmProcess process("", true);
  ASSERT_EQ(process.ask("link up"), "ok");
  const auto listen_once = [&] {
    const uint32_t listener = process.number("listen " + text(service(7017)) + " any4");
    EXPECT_EQ(process.ask("stop " + std::to_string(listener)), "ok");
  };
  listen_once();
  const uint32_t before = process.number("counter udp_steering_updates");
  for (int i = 0; i < 50; ++i) listen_once();
  EXPECT_EQ(process.number("counter udp_steering_updates"), before);
}

// A process that starts and stops listening in a loop must not make the kernel free thousands of
// BPF programs: the kernel may lock up.
TEST(ConnectionManager, LimitsTheRateOfSteeringUpdates) {
  CmProcess first, second;  // packets without a slot go to the first
  first.number("listen " + text(service(7018)));
  second.number("listen " + text(service(7019)));
  const auto start = std::chrono::steady_clock::now();
  const uint32_t before = second.number("counter udp_steering_updates");
  for (int i = 0; i < 100; ++i) {
    const uint32_t listener = second.number("listen " + text(service(7020)));
    EXPECT_EQ(second.ask("stop " + std::to_string(listener)), "ok");
  }
  const uint32_t programs = second.number("counter udp_steering_updates") - before;
  const auto took = std::chrono::steady_clock::now() - start;
  constexpr int kAddresses = 2;  // of the loopback interface, each with a group of sockets
  EXPECT_LE(programs, kAddresses * (16 + took / std::chrono::milliseconds(10)));
  second.number("listen " + text(service(7020)));
  connect_and_disconnect(first, second, text(service(7020)));
}

TEST(ConnectionManager, AStoppedProcessDoesNotBlockConnectionsOfOthers) {
  VERBENA_NEEDS_STEERING();
  for (int stopped = 0; stopped < 3; ++stopped) {
    CmProcess bystanders[3];
    for (uint16_t i = 0; i < 3; ++i) {
      bystanders[i].number("listen " + text(service(static_cast<uint16_t>(7020 + i))) + " any");
    }
    CmProcess server, client;
    server.number("listen " + text(service(7030)) + " any");
    connect_and_disconnect(client, server, text(service(7030)));
    // Counts the packets of other processes: forwarded, rejected or dropped.
    const auto misrouted = [](CmProcess& p) {
      return p.number("counter udp_misrouted_forwarded") +
             p.number("counter udp_misrouted_dropped") + p.number("counter cm_no_listener") +
             p.number("counter cm_unknown_id");
    };
    uint32_t before[3] = {};
    for (int i = 0; i <= stopped; ++i) {
      before[i] = misrouted(bystanders[i]);
      bystanders[i].stop();
    }

    // Existing processes, a new client, and a new listener.
    connect_and_disconnect(client, server, text(service(7030)));
    CmProcess late_client, late_server;
    connect_and_disconnect(late_client, server, text(service(7030)));
    late_server.number("listen " + text(service(7031)) + " any");
    connect_and_disconnect(late_client, late_server, text(service(7031)));
    connect_and_disconnect(client, late_server, text(service(7031)));
    // This request has no listener, and a running process rejects it.
    client.number("connect " + text(service(7032)));
    EXPECT_NE(client.ask("event 5000").find("rejected"), std::string::npos);
    // No datagram, not even a retransmitted one, went to the stopped processes.
    for (int i = 0; i <= stopped; ++i) {
      bystanders[i].resume();
      connect_and_disconnect(client, bystanders[i], text(service(static_cast<uint16_t>(7020 + i))));
      EXPECT_EQ(misrouted(bystanders[i]), before[i]);
    }
  }
}

TEST(ConnectionManager, AProcessWithoutAConnectionManagerForwardsRequests) {
  CmProcess plain[3];
  for (CmProcess& p : plain) ASSERT_EQ(p.ask("plain"), "ok");
  CmProcess server, client;
  server.number("listen " + text(service(7040)) + " any");
  connect_and_disconnect(client, server, text(service(7040)));
}

// Another process responds for a killed one.
TEST(ConnectionManager, AConnectionToAKilledProcessEndsAtOnce) {
  auto server = std::make_unique<CmProcess>();
  CmProcess client, bystander;
  ASSERT_EQ(bystander.ask("plain"), "ok");
  server->number("listen " + text(service(7050)) + " any");
  const uint32_t active = client.number("connect " + text(service(7050)));
  const uint32_t passive = id_of(server->ask("event"), "connect request");
  EXPECT_EQ(server->ask("accept " + std::to_string(passive)), "ok");
  EXPECT_EQ(id_of(client.ask("event"), "connect response"), active);
  EXPECT_EQ(client.ask("establish " + std::to_string(active)), "ok");
  id_of(server->ask("event"), "established");
  const uint32_t before =
      client.number("counter cm_retransmissions");  // a slow machine may have retransmitted
  server->kill();
  EXPECT_EQ(client.ask("disconnect " + std::to_string(active)), "ok");
  EXPECT_EQ(client.ask("event"),
            "disconnected id " + std::to_string(active) + " reason 0 error 0 sidr 0");
  EXPECT_EQ(client.number("counter cm_retransmissions"), before);
}

// A third process of the host, perhaps of another user, names the queue pair of a connection.
TEST(ConnectionManager, AForgedRequestEndsNoConnection) {
  CmProcess server, client, third;
  server.number("listen " + text(service(7016)));
  const uint32_t active = client.number("connect " + text(service(7016)) + " 4711");
  const uint32_t passive = id_of(server.ask("event"), "connect request");
  EXPECT_EQ(server.ask("accept " + std::to_string(passive)), "ok");
  EXPECT_EQ(id_of(client.ask("event"), "connect response"), active);
  EXPECT_EQ(client.ask("establish " + std::to_string(active)), "ok");
  EXPECT_EQ(id_of(server.ask("event"), "established"), passive);

  third.number("connect " + text(service(7016)) + " 4711");
  const std::string stale = " reason " + std::to_string(int(cm::RejectReason::StaleConnection));
  EXPECT_NE(third.ask("event").find(stale), std::string::npos);
  EXPECT_EQ(server.number("counter cm_stale_connections"), 1u);
  EXPECT_EQ(client.ask("event 100"), "none");
  EXPECT_EQ(client.ask("disconnect " + std::to_string(active)), "ok");
  EXPECT_EQ(id_of(server.ask("event"), "disconnected"), passive);
  EXPECT_EQ(id_of(client.ask("event"), "disconnected"), active);
}

TEST(ConnectionManager, ExitDisconnects) {
  CmProcess server, client;
  server.number("listen " + text(service(7051)) + " any");
  const uint32_t active = client.number("connect " + text(service(7051)));
  const uint32_t passive = id_of(server.ask("event"), "connect request");
  EXPECT_EQ(server.ask("accept " + std::to_string(passive)), "ok");
  id_of(client.ask("event"), "connect response");
  EXPECT_EQ(client.ask("establish " + std::to_string(active)), "ok");
  EXPECT_EQ(id_of(server.ask("event"), "established"), passive);
  client.ask("exit");
  EXPECT_EQ(id_of(server.ask("event"), "disconnected"), passive);
}

// A datagram of another program to queue pair 1, with a correct ICRC.
void send_to_port(const wire::Gid& address, std::span<const std::byte> mad, uint32_t qkey) {
  auto socket = datapath::open_send_socket({address, 0}, {}, 0);
  ASSERT_TRUE(socket.ok());
  wire::Packet p;
  p.bth.opcode = static_cast<uint8_t>(wire::Opcode::UdSendOnly);
  p.bth.destination = wire::kManagementQpn;
  p.deth = {.qkey = qkey, .source = wire::kManagementQpn};
  std::vector<std::byte> packet(wire::kMaxHeaderBytes);
  packet.resize(wire::store_headers(p, packet.data()));
  packet.insert(packet.end(), mad.begin(), mad.end());
  packet.resize(packet.size() + wire::kIcrcBytes);
  const wire::IcrcFlow flow{address, address, socket.value().port, wire::kRoceUdpPort};
  const auto covered = std::span(packet).first(packet.size() - wire::kIcrcBytes);
  const uint32_t prefix = wire::icrc_prefix_with_id(wire::icrc_prefix(flow, packet.size()), 0);
  wire::store_icrc(packet.data() + covered.size(), wire::icrc_over_bth(prefix, covered));
  const auto to = host::SocketAddress::of({address, 0}, wire::kRoceUdpPort);
  ASSERT_EQ(::sendto(socket.value().fd.get(), packet.data(), packet.size(), 0, to.get(), to.bytes),
            static_cast<ssize_t>(packet.size()));
}

void wait_for(CmHost& host, const std::string& counter, uint64_t value) {
  const Instant limit = now() + seconds(10);
  while (host.counter(counter) < value && now() < limit) ::poll(nullptr, 0, 1);
  EXPECT_EQ(host.counter(counter), value) << counter;
}

TEST(ConnectionManager, CountsAndDropsMalformedDatagrams) {
  CmHost host;
  cm::ListenParameters listen;
  listen.service_id = service(7070);
  auto listener = host.manager().listen(listen);
  ASSERT_TRUE(listener.ok());
  const auto before = [&](const char* name) { return host.counter(name); };
  const uint64_t no_mads = before("bad_management"), qkeys = before("wrong_qkey");
  const uint64_t malformed = before("cm_malformed_mads"),
                 unsupported = before("cm_unsupported_mads");
  const uint64_t bad = before("cm_bad_requests"), unknown = before("cm_unknown_id");

  cm::Mad mad{};
  send_to_port(host.address(), std::span(mad).first(100), core::kManagementQkey);
  wait_for(host, "bad_management", no_mads + 1);
  send_to_port(host.address(), mad, 0x1234);
  wait_for(host, "wrong_qkey", qkeys + 1);
  send_to_port(host.address(), mad, core::kManagementQkey);  // all zero: no valid class
  wait_for(host, "cm_malformed_mads", malformed + 1);
  cm::MadHeader header;
  header.attribute = static_cast<cm::Attribute>(0x7777);
  header.store(mad.data());
  send_to_port(host.address(), mad, core::kManagementQkey);
  wait_for(host, "cm_unsupported_mads", unsupported + 1);
  cm::Req req;  // without a communication ID, from another address than its sender's
  req.service_id = service(7070);
  req.store(mad);
  send_to_port(host.address(), mad, core::kManagementQkey);
  wait_for(host, "cm_bad_requests", bad + 1);
  req.local_comm_id = 1;
  req.store(mad);
  send_to_port(host.address(), mad, core::kManagementQkey);
  wait_for(host, "cm_bad_requests", bad + 2);
  wait_for(host, "cm_unknown_id", unknown + 1);  // our own REJ, since the sender has our address
  cm::Rej rej;                                   // for a connection that does not exist
  rej.local_comm_id = 5;
  rej.store(mad);
  send_to_port(host.address(), mad, core::kManagementQkey);
  wait_for(host, "cm_unknown_id", unknown + 2);
  EXPECT_FALSE(host.next_event(milliseconds(20)));
  EXPECT_TRUE(host.manager().stop_listening(listener.value()).ok());
}

TEST(ConnectionManager, RejectsInvalidCalls) {
  CmHost host;
  ConnectionManager& cm = host.manager();
  EXPECT_EQ(cm.accept(77, {}).error().code, EINVAL);
  EXPECT_EQ(cm.establish(77, {}).error().code, EINVAL);
  EXPECT_EQ(cm.disconnect(77, {}).error().code, EINVAL);
  EXPECT_EQ(cm.info(77).error().code, ENOENT);
  EXPECT_EQ(cm.sidr_info(77).error().code, ENOENT);
  EXPECT_EQ(cm.stop_listening(77).error().code, EINVAL);
  cm.destroy(77);
  cm.request_taken(77);
  cm::ListenParameters listen;
  listen.service_id = service(7071);
  const uint8_t not_ours[4] = {192, 0, 2, 1};
  listen.address = wire::Gid::from_ipv4(not_ours);
  EXPECT_EQ(cm.listen(listen).error().code, EADDRNOTAVAIL);
  cm::ConnectParameters connect = host.to(service(7071));
  connect.addresses.local_gid = wire::Gid::from_ipv4(not_ours);
  EXPECT_EQ(cm.connect(connect).error().code, EADDRNOTAVAIL);
  connect = host.to(service(7071));
  connect.addresses.peer_gid = {};
  EXPECT_FALSE(cm.connect(connect).ok());
}

TEST(ConnectionManager, FailsInAForkedChild) {
  CmHost host;
  cm::ListenParameters listen;
  listen.service_id = service(7072);
  auto listener = host.manager().listen(listen);
  ASSERT_TRUE(listener.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ConnectionManager& cm = host.manager();
    const bool all_fail = cm.listen(listen).error().code == EIO &&
                          cm.stop_listening(listener.value()).error().code == EIO &&
                          cm.connect(host.to(service(7072))).error().code == EIO &&
                          cm.info(1).error().code == EIO && cm.accept(1, {}).error().code == EIO;
    cm.destroy(1);
    cm.request_taken(1);
    cm.set_sink(nullptr);
    ::_exit(all_fail && host.nic().connection_manager() == nullptr ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  // The parent's connection manager still works.
  EXPECT_TRUE(host.manager().connect(host.to(service(7072))).ok());
  const auto event = host.next_event();
  ASSERT_TRUE(event && event->kind == cm::EventKind::ConnectRequest);
  host.manager().destroy(event->id);
  EXPECT_TRUE(host.manager().stop_listening(listener.value()).ok());
  // The child does not hold the port.
  CmProcess other;
  other.number("listen " + text(service(7072)) + " any");
}

// A wildcard listener also listens on addresses that are added later.
TEST(ConnectionManager, ListensOnNewAddresses) {
  CmProcess process("", true);
  if (process.ask("link up") != "ok") {
    GTEST_SKIP() << "cannot create a network namespace";
  }
  process.number("listen " + text(service(7073)) + " any");
  ASSERT_EQ(process.ask("run ip addr add 192.0.2.99/24 dev lo"), "ok");
  process.number("reach 192.0.2.99 " + text(service(7073)));
  id_of(process.ask("event"), "connect request");
}

TEST(ConnectionManager, ConnectsThroughAFaultyNetwork) {
  CmProcess server("VERBENA_FAULTS=loss=0.1,duplicate=0.1,reorder=0.1,seed=7");
  CmProcess client("VERBENA_FAULTS=loss=0.1,seed=8");
  server.number("listen " + text(service(7060)) + " any");
  for (int i = 0; i < 10; ++i) connect_and_disconnect(client, server, text(service(7060)));
}

}  // namespace
}  // namespace verbena::runtime
