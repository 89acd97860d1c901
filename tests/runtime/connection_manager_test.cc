// Connections through the connection manager of real Nics: within a process, and between several.
#include "runtime/connection_manager.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "cm/ip_addressing.h"
#include "tests/runtime/cm_host_support.h"

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

// From a process that asks to one that listens, and through the end.
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

TEST(ConnectionManager, APortBelongsToOneProcess) {
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

TEST(ConnectionManager, ARequestForNobodyIsRefused) {
  CmProcess client, bystander;
  ASSERT_EQ(bystander.ask("plain"), "ok");
  for (int i = 0; i < 3; ++i) {
    client.number("connect " + text(service(7005)));
    EXPECT_NE(client.ask("event").find(" reason 8 "), std::string::npos);
    client.number("sidr " + text(service(7005)));
    EXPECT_NE(client.ask("event").find(" sidr 1"), std::string::npos);
  }
}

TEST(ConnectionManager, ServicesAreResolvedBetweenProcesses) {
  CmProcess server, client;
  server.number("listen " + text(service(7006)) + " any");
  const uint32_t asked = client.number("sidr " + text(service(7006)));
  const uint32_t request = id_of(server.ask("event"), "SIDR request");
  EXPECT_EQ(server.ask("answer " + std::to_string(request)), "ok");
  EXPECT_EQ(id_of(client.ask("event"), "SIDR response"), asked);
}

// Settled, the kernel alone finds the way: no datagram goes through another process.
TEST(ConnectionManager, TheKernelFindsTheProcess) {
  CmProcess servers[4];
  CmProcess client;
  for (uint16_t i = 0; i < 4; ++i) {
    servers[i].number("listen " + text(service(static_cast<uint16_t>(7010 + i))) + " any");
  }
  connect_and_disconnect(client, servers[0], text(service(7010)));
  const auto strays = [&] {
    uint32_t sum = client.number("counter udp_strays_forwarded");
    for (CmProcess& server : servers) sum += server.number("counter udp_strays_forwarded");
    return sum;
  };
  const uint32_t before = strays();
  for (uint16_t i = 0; i < 4; ++i) {
    for (int k = 0; k < 3; ++k) {
      connect_and_disconnect(client, servers[i], text(service(static_cast<uint16_t>(7010 + i))));
    }
  }
  EXPECT_EQ(strays(), before);
}

// One after the other is stopped, so that whichever the kernel prefers is among them.
TEST(ConnectionManager, AStoppedProcessDoesNotStopTheOthersConnections) {
  for (int stopped = 0; stopped < 3; ++stopped) {
    CmProcess bystanders[3];
    for (uint16_t i = 0; i < 3; ++i) {
      bystanders[i].number("listen " + text(service(static_cast<uint16_t>(7020 + i))) + " any");
    }
    CmProcess server, client;
    server.number("listen " + text(service(7030)) + " any");
    connect_and_disconnect(client, server, text(service(7030)));
    for (int i = 0; i <= stopped; ++i) bystanders[i].stop();

    // Those that were there, one that comes, and a listener that comes.
    connect_and_disconnect(client, server, text(service(7030)));
    CmProcess late_client, late_server;
    connect_and_disconnect(late_client, server, text(service(7030)));
    late_server.number("listen " + text(service(7031)) + " any");
    connect_and_disconnect(late_client, late_server, text(service(7031)));
    connect_and_disconnect(client, late_server, text(service(7031)));
    // Nobody is there for this one; somebody who runs says so.
    client.number("connect " + text(service(7032)));
    EXPECT_NE(client.ask("event 5000").find("rejected"), std::string::npos);
    // All of it without a datagram lost: that would have cost its sender a repetition.
    for (CmProcess* p : {&client, &server, &late_client, &late_server}) {
      EXPECT_EQ(p->number("counter cm_retransmissions"), 0u);
    }
  }
}

TEST(ConnectionManager, AProcessWithoutItPassesRequestsOn) {
  CmProcess plain[3];
  for (CmProcess& p : plain) ASSERT_EQ(p.ask("plain"), "ok");
  CmProcess server, client;
  server.number("listen " + text(service(7040)) + " any");
  connect_and_disconnect(client, server, text(service(7040)));
}

// The peer of a killed process is told by whoever is there.
TEST(ConnectionManager, AConnectionToADeadProcessEndsAtOnce) {
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
  server->kill();
  EXPECT_EQ(client.ask("disconnect " + std::to_string(active)), "ok");
  EXPECT_EQ(client.ask("event"),
            "disconnected id " + std::to_string(active) + " reason 0 error 0 sidr 0");
  EXPECT_EQ(client.number("counter cm_retransmissions"), 0u);
}

// exit() says goodbye for those who did not.
TEST(ConnectionManager, AProcessThatExitsDisconnects) {
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

TEST(ConnectionManager, ConnectsThroughAFaultyNetwork) {
  CmProcess server("VERBENA_FAULTS=loss=0.1,duplicate=0.1,reorder=0.1,seed=7");
  CmProcess client("VERBENA_FAULTS=loss=0.1,seed=8");
  server.number("listen " + text(service(7060)) + " any");
  for (int i = 0; i < 10; ++i) connect_and_disconnect(client, server, text(service(7060)));
}

}  // namespace
}  // namespace verbena::runtime
