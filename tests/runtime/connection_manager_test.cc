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
  bystander.ask("plain");
  for (int i = 0; i < 3; ++i) {
    client.number("connect " + text(service(7005)));
    EXPECT_NE(client.ask("event").find("rejected"), std::string::npos);
    client.number("sidr " + text(service(7005)));
    EXPECT_NE(client.ask("event").find("SIDR response"), std::string::npos);
  }
}

}  // namespace
}  // namespace verbena::runtime
