// The simulated network carries out each fault of the list.
#include "sim/network.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace verbena::sim {
namespace {

constexpr Duration kLinkDelay = microseconds(10);
constexpr int kSent = 200;

// Packets from host 0 to host 1, one per microsecond.
struct TestLink {
  Prng prng{11};
  Trace trace;
  Network network{prng, trace};
  std::vector<std::vector<Network::Delivery>> deliveries;  // of each packet

  explicit TestLink(const wire::PacketFaults& faults) {
    network.link(0, 1).packet = faults;
    network.link(0, 1).delay = kLinkDelay;
  }
  void send_all() {
    for (int i = 0; i < kSent; ++i) {
      deliveries.push_back(network.send(0, 1, Bytes(16, std::byte(i)), sent_at(i)));
    }
  }
  static Instant sent_at(int packet) { return Instant{1000} + microseconds(packet); }
  uint64_t lost() const { return network.counts().lost; }
  // How much later than on a perfect link the only copy of a packet arrives.
  Duration lateness(int packet) const {
    const auto& copies = deliveries[static_cast<size_t>(packet)];
    EXPECT_EQ(copies.size(), 1u);
    return copies.empty() ? Duration{} : copies[0].at - (sent_at(packet) + kLinkDelay);
  }
};

TEST(Network, CountsEveryFaultOfTheList) {
  for (const wire::PacketFaultInfo& f : wire::kPacketFaults) {
    wire::PacketFaults faults;
    faults.*f.probability = 1;
    TestLink link(faults);
    link.send_all();
    EXPECT_EQ(link.network.counts().faults[f.fault], uint64_t{kSent}) << f.name;
  }
}

TEST(Network, DeliversEachPacketOnceAndInTimeWithoutFaults) {
  TestLink link({});
  link.send_all();
  for (int i = 0; i < kSent; ++i) EXPECT_EQ(link.lateness(i), Duration{});
  EXPECT_EQ(link.lost(), 0u);
}

TEST(Network, DropsLostAndCorruptedPackets) {
  for (const wire::PacketFaults& faults :
       {wire::PacketFaults{.loss = 1}, wire::PacketFaults{.corrupt = 1}}) {
    TestLink link(faults);
    link.send_all();
    for (const auto& copies : link.deliveries) EXPECT_TRUE(copies.empty());
    EXPECT_EQ(link.lost(), uint64_t{kSent});
  }
}

TEST(Network, DeliversADuplicatedPacketTwice) {
  TestLink link({.duplicate = 1});
  link.send_all();
  for (const auto& copies : link.deliveries) {
    ASSERT_EQ(copies.size(), 2u);
    EXPECT_EQ(copies[0].bytes, copies[1].bytes);
  }
}

TEST(Network, LaterPacketsOvertakeAReorderedOne) {
  TestLink link({.reorder = 0.1});
  link.send_all();
  int reordered = 0;
  for (int i = 0; i < kSent; ++i) {
    const bool late = link.lateness(i) == kLinkDelay;
    EXPECT_TRUE(late || link.lateness(i) == Duration{});
    reordered += late;
  }
  EXPECT_GT(reordered, 0);
  EXPECT_EQ(link.network.counts().faults[wire::PacketFault::Reorder],
            static_cast<uint64_t>(reordered));
}

TEST(Network, DelaysAPacketByABoundedTime) {
  TestLink link({.delay = 1});
  link.send_all();
  Duration most{};
  for (int i = 0; i < kSent; ++i) {
    EXPECT_GE(link.lateness(i), Duration{});
    most = std::max(most, link.lateness(i));
  }
  EXPECT_GT(most, kLinkDelay);
  EXPECT_LE(most, nanoseconds(16 * kLinkDelay.ns));
}

TEST(Network, MarksOnlyEcnCapablePackets) {
  TestLink link({.mark = 1});
  const auto is_marked = [&](wire::Opcode opcode) {
    const auto copies = link.network.send(0, 1, Bytes(16, std::byte(opcode)), Instant{1000});
    EXPECT_EQ(copies.size(), 1u);
    return copies.at(0).marked;
  };
  EXPECT_TRUE(is_marked(wire::Opcode::RcSendOnly));
  EXPECT_TRUE(is_marked(wire::Opcode::RcAck));
  EXPECT_FALSE(is_marked(wire::Opcode::UdSendOnly));
  EXPECT_FALSE(is_marked(wire::Opcode::Cnp));
}

TEST(Network, HealingEndsAllFaults) {
  wire::PacketFaults faults;
  for (const wire::PacketFaultInfo& f : wire::kPacketFaults) faults.*f.probability = 0.2;
  TestLink link(faults);
  link.network.heal();
  link.send_all();
  for (int i = 0; i < kSent; ++i) EXPECT_EQ(link.lateness(i), Duration{});
}

}  // namespace
}  // namespace verbena::sim
