// Allocation failures at every point: while packets, connection messages and messages of other
// processes are received, and during calls of the application. The process survives and works
// afterwards.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>

#include "base/exhaustion.h"
#include "cm/ip_addressing.h"
#include "core/path_references.h"
#include "tests/runtime/cm_host_support.h"
#include "tests/runtime/failing_allocator_support.h"
#include "tests/runtime/rej_sender.h"

namespace verbena::runtime {
namespace {

std::string service_text(uint16_t port) {
  return std::to_string(cm::service_id(cm::PortSpace::Tcp, port));
}

// The ID in an event of that kind; 0 for another kind.
uint32_t event_id(const std::string& event, const std::string& kind) {
  unsigned id = 0;
  if (event.rfind(kind + " id ", 0) != 0) return 0;
  std::sscanf(event.c_str() + kind.size(), " id %u", &id);
  return id;
}

// Waits for an event of that kind. Events of earlier connections may be in between.
uint32_t await(CmProcess& process, const std::string& kind, uint32_t wanted = 0) {
  std::string event;
  for (int i = 0; i < 200; ++i) {
    event = process.ask("event 10000");
    const uint32_t id = event_id(event, kind);
    if (id != 0 && (wanted == 0 || wanted == id)) return id;
    if (event == "none" || event[0] == '(') break;
  }
  ADD_FAILURE() << "no " << kind << " but " << event;
  return 0;
}

TEST(PathReferences, OpenCanBeRepeatedAfterAFailedAllocation) {
  core::PathReferences holds;
  for (uint32_t id = 0; id < 40; ++id) {
    const auto path = static_cast<wire::PathId>(id);
    for (int64_t failing = 1;; ++failing) {  // each allocation of open() in turn
      test::fail_allocations(test::FailIn::AllThreads, failing, 1);
      const bool opened = try_allocating([&] { holds.open(path); });
      test::fail_allocations(test::FailIn::NoThread, 0, 0);
      if (opened) break;
    }
  }
}

// Accepts an event only at the third attempt.
struct SinkWithoutMemory final : ConnectionManager::Sink {
  bool on_event(const cm::Event&) noexcept override { return ++calls >= 3; }
  void on_removed() override {}
  std::atomic<int> calls{0};
};

TEST(ConnectionManager, DeliversAnEventAgainAfterAFailedAllocation) {
  CmHost host;
  SinkWithoutMemory sink;
  host.manager().set_sink(&sink);
  cm::ListenParameters listen;
  listen.service_id = cm::service_id(cm::PortSpace::Tcp, 7302);
  ASSERT_TRUE(host.manager().listen(listen).ok());
  ASSERT_TRUE(host.manager().connect(host.to(listen.service_id)).ok());
  for (int ms = 0; ms < 10'000 && sink.calls < 3; ++ms) poll(nullptr, 0, 1);
  EXPECT_EQ(sink.calls, 3);
  host.nic().lanes().first().turn_for_poller();
  EXPECT_TRUE(host.nic().port().up);  // the lock is free
  host.manager().set_sink(&host);
}

// Two contexts have opened an XRC receive queue pair. An allocation fails between the two
// deliveries.
TEST(AsyncEvents, ReachEachOwnerOnceDespiteAFailedAllocation) {
  constexpr int kEvents = 200;
  CmHost host;
  Nic& nic = host.nic();
  const std::unique_ptr<EventChannel> channels[] = {
      std::unique_ptr<EventChannel>(EventChannel::create().value()),
      std::unique_ptr<EventChannel>(EventChannel::create().value())};
  Owner owners[2];
  for (int i = 0; i < 2; ++i) owners[i].async_channel = channels[i].get();
  core::QpConfig config;
  config.type = core::QpType::XrcReceive;
  config.xrc_domain = 1;
  auto qp = nic.create_qp(config, &owners[0]);
  ASSERT_TRUE(qp.ok()) << qp.error().why;
  ASSERT_TRUE(nic.open_qp(qp.value()->qpn(), 1, &owners[1]).ok());
  for (int i = 0; i < kEvents; ++i) {
    {
      Nic::Guard guard(nic);
      guard.engine().state().events.push_back(
          {.kind = core::EventKind::CommEstablished, .qp = qp.value()});
      test::fail_allocations(test::FailIn::AllThreads, 2, 1);
    }
    test::fail_allocations(test::FailIn::NoThread, 0, 0);
  }
  { const Nic::Guard guard(nic); }  // delivers the remaining events
  for (const auto& channel : channels) {
    int delivered = 0;
    Event event;
    while (channel->try_pop(&event) == 0) ++delivered;
    EXPECT_EQ(delivered, kEvents);
  }
  for (Owner& owner : owners) EXPECT_TRUE(nic.destroy_qp(qp.value(), &owner).ok());
}

struct Exhaustion : testing::Test {
  void set_up(const std::string& with) {
    environment = with;
    victim = std::make_unique<CmProcess>(environment);
    client = std::make_unique<CmProcess>(environment);
    victim->number("listen " + service_text(7300) + " any");
    client->number("listen " + service_text(7301) + " any");
    ASSERT_EQ(victim->ask("traffic 4"), "ok");
  }

  // Uses a new process and a new listener.
  void connect_and_disconnect() {
    client.reset();
    victim->number("listen " + service_text(7310) + " any");
    for (int i = 0; i < 1000 && victim->ask("event 0") != "none"; ++i) {
    }
    CmProcess fresh(environment);
    constexpr uint32_t kOwnQpn = 0x7F0001;  // not used by provoke()
    const uint32_t active =
        fresh.number("connect " + service_text(7310) + " " + std::to_string(kOwnQpn));
    const uint32_t passive = await(*victim, "connect request");
    ASSERT_EQ(victim->ask("accept " + std::to_string(passive)), "ok");
    await(fresh, "connect response", active);
    ASSERT_EQ(fresh.ask("establish " + std::to_string(active)), "ok");
    await(*victim, "established", passive);
    ASSERT_EQ(fresh.ask("disconnect " + std::to_string(active)), "ok");
    await(*victim, "disconnected", passive);
  }

  // Makes the victim's threads allocate for many reasons.
  void provoke() {
    client->ask("connect " + service_text(7300));
    client->ask("sidr " + service_text(7300));
    flood.send(20);
    victim->ask("connect " + service_text(7301));
    victim->ask("traffic 4");
  }

  // Stops the failures. Returns the number of allocations, or 0 if the command itself failed.
  int stop_failing() {
    int seen = 0;
    const std::string reply = victim->ask("fail none 0 0");
    return std::sscanf(reply.c_str(), "ok %d", &seen) == 1 ? seen : 0;
  }

  // Fails each allocation in turn, `count` at a time, up to the most that any round made. A call
  // that fails early makes few allocations, so a single round does not end the loop.
  void fail_each(const std::string& threads, int count) {
    constexpr int kLeast = 6;
    constexpr int kMaxAllocations = 400;
    int most_seen = 0;
    for (int first = 1; first <= std::clamp(most_seen, kLeast, kMaxAllocations); first += count) {
      victim->ask("fail " + threads + " " + std::to_string(first) + " " + std::to_string(count));
      provoke();
      most_seen = std::max(most_seen, stop_failing());
      ASSERT_EQ(victim->ask("traffic 2"), "ok") << "after allocation " << first;
    }
    EXPECT_GT(most_seen, 5);  // provoke() caused allocations
    connect_and_disconnect();
  }

  std::string environment;
  std::unique_ptr<CmProcess> victim;
  std::unique_ptr<CmProcess> client;
  test::RejSender flood;
};

TEST_F(Exhaustion, TheBackgroundThreadSurvivesEachFailedAllocation) {
  set_up("VERBENA_STEERING=off");
  fail_each("background", 1);
}

TEST_F(Exhaustion, TheBackgroundThreadSurvivesFailedAllocationsOnALossyNetwork) {
  set_up("VERBENA_FAULTS=loss=0.05,reorder=0.05,duplicate=0.05,seed=7");
  fail_each("background", 3);
}

TEST_F(Exhaustion, CallsSurviveEachFailedAllocation) {
  set_up("VERBENA_STEERING=off");
  fail_each("all", 1);
}

TEST_F(Exhaustion, TheBackgroundThreadWorksAgainWhenMemoryIsAvailable) {
  set_up("");
  victim->ask("fail background 1 1000000000");
  for (int i = 0; i < 5; ++i) provoke();
  stop_failing();
  ASSERT_EQ(victim->ask("traffic 20"), "ok");
  connect_and_disconnect();
}

}  // namespace
}  // namespace verbena::runtime
