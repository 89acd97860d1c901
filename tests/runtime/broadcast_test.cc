// Connection messages that go to every process of the host, and their cost for the host when they
// are frequent.
#include <string>

#include "tests/runtime/cm_host_support.h"
#include "tests/runtime/rej_sender.h"
#include "tests/runtime/udp_process.h"

namespace verbena::datapath {
namespace {

Instant broadcast_clock{seconds(1).ns};

struct Broadcast : testing::Test {
  void SetUp() override {
    for (Process* p : {&sender, &reader, &stopped}) {
      ASSERT_TRUE(p->udp->listen(kLoopback4).ok());
    }
    complete_steering({&sender, &reader, &stopped});
    meta.source = meta.destination = kLoopback4;
  }
  static UdpOptions options() {
    UdpOptions o;
    o.now = [] { return broadcast_clock; };
    return o;
  }
  void broadcast() { sender.udp->forward_to_everyone(packet, meta); }

  Process sender{options()};
  Process reader;
  Process stopped;  // until the test lets it receive
  std::vector<std::byte> packet = std::vector<std::byte>(276);
  wire::RxMeta meta;
};

TEST_F(Broadcast, NeverWaitsForAProcessThatDoesNotRead) {
  for (int i = 0; i < 1000; ++i) {
    broadcast_clock = broadcast_clock + milliseconds(10);
    broadcast();
    reader.receive();
  }
  EXPECT_GE(sender.counter("udp_misrouted_forwarded"), 1000u);
  EXPECT_GT(sender.counter("udp_misrouted_dropped"), 0u);
  EXPECT_EQ(sender.counter("udp_broadcasts_limited"), 0u);
  EXPECT_EQ(sender.counter("udp_misrouted_waits"), 0u);
}

TEST_F(Broadcast, IsLimitedToAHundredPerSecond) {
  for (int i = 0; i < 1000; ++i) broadcast();
  EXPECT_EQ(sender.counter("udp_broadcasts_limited"), 900u);
  broadcast_clock = broadcast_clock + milliseconds(500);
  for (int i = 0; i < 1000; ++i) broadcast();
  EXPECT_EQ(sender.counter("udp_broadcasts_limited"), 900u + 950u);
}

// A packet for one process may wait for it. Other processes that read do not restore its budget.
TEST_F(Broadcast, WaitingForAStoppedProcessEndsAlthoughOthersRead) {
  for (int i = 0; i < 200; ++i) {
    for (Process* p : {&stopped, &reader}) (void)sender.udp->forward(p->slot(), packet, meta);
    reader.receive();
    reader.receive();
  }
  EXPECT_EQ(sender.directory->waits(), host::WaitBudget::kWaitsPerDestination);
}

}  // namespace
}  // namespace verbena::datapath

namespace verbena::runtime {
namespace {

// Without steering each process gets a share of the flood and forwards it.
TEST(BroadcastFlood, CallsReturnWhileAnotherProcessIsStopped) {
  CmProcess caller("VERBENA_STEERING=off"), reader("VERBENA_STEERING=off"),
      stopped("VERBENA_STEERING=off");
  for (CmProcess* p : {&caller, &reader, &stopped}) {
    static int port = 0;
    p->number("listen " + std::to_string(0x01060000 + 7100 + port++) + " any");
  }
  stopped.stop();
  test::RejSender flood;
  const auto received = [&] { return caller.number("counter udp_packets_received"); };
  const uint32_t before = received();
  for (int i = 0; i < 20; ++i) {
    flood.send(100);
    EXPECT_EQ(caller.number("register 100"), 100u);
  }
  EXPECT_GT(received(), before);
  EXPECT_GT(caller.number("counter udp_misrouted_forwarded"), 0u);
  EXPECT_GT(caller.number("counter udp_broadcasts_limited"), 0u);
  for (CmProcess* p : {&caller, &reader}) EXPECT_EQ(p->number("counter udp_misrouted_waits"), 0u);
}

}  // namespace
}  // namespace verbena::runtime
