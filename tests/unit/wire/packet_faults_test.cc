// The list of packet faults and the draw.
#include "wire/packet_faults.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace verbena::wire {
namespace {

std::vector<PacketFault> draw(const PacketFaults& faults, int packets, uint64_t seed = 7) {
  Prng prng(seed);
  std::vector<PacketFault> all;
  for (int i = 0; i < packets; ++i) all.push_back(faults.draw(prng));
  return all;
}

TEST(PacketFaults, WithoutProbabilitiesNothingHappens) {
  for (const PacketFault f : draw({}, 1000)) EXPECT_EQ(f, PacketFault::None);
}

TEST(PacketFaults, AFaultOfProbabilityOneHitsEveryPacket) {
  for (const PacketFaultInfo& info : kPacketFaults) {
    PacketFaults faults;
    faults.*info.probability = 1;
    for (const PacketFault f : draw(faults, 1000)) ASSERT_EQ(f, info.fault) << info.name;
  }
}

TEST(PacketFaults, EachFaultHasItsProbabilityBesideTheOthers) {
  constexpr int kPackets = 100'000;
  PacketFaults faults;
  double probability = 0.02;
  for (const PacketFaultInfo& f : kPacketFaults) {
    faults.*f.probability = probability;
    probability += 0.02;
  }
  PacketFaultCounts counts;
  for (const PacketFault f : draw(faults, kPackets)) counts.add(f);
  uint64_t sum = counts[PacketFault::None];
  for (const PacketFaultInfo& f : kPacketFaults) {
    EXPECT_NEAR(static_cast<double>(counts[f.fault]), faults.*f.probability * kPackets, 600)
        << f.name;
    sum += counts[f.fault];
  }
  EXPECT_EQ(sum, uint64_t{kPackets});
}

TEST(PacketFaults, TheFirstFaultsPrevailBeyondASumOfOne) {
  PacketFaults faults;
  for (const PacketFaultInfo& f : kPacketFaults) faults.*f.probability = 1;
  for (const PacketFault f : draw(faults, 1000)) EXPECT_EQ(f, kPacketFaults[0].fault);
}

// So a new fault changes no run that does not use it.
TEST(PacketFaults, ADrawTakesOneNumberWhateverTheProbabilities) {
  PacketFaults all;
  for (const PacketFaultInfo& f : kPacketFaults) all.*f.probability = 0.1;
  for (const PacketFaults& faults : {PacketFaults{}, PacketFaults{.loss = 1}, all}) {
    Prng drawn(3), expected(3);
    for (int i = 0; i < 100; ++i) {
      faults.draw(drawn);
      expected.next();
      ASSERT_EQ(drawn.next(), expected.next());
    }
  }
}

TEST(PacketFaults, LossHitsTheSamePacketsBesideAnotherFault) {
  const auto alone = draw({.loss = 0.1}, 1000);
  const auto both = draw({.loss = 0.1, .delay = 0.3}, 1000);
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(alone[i] == PacketFault::Loss, both[i] == PacketFault::Loss) << i;
  }
}

TEST(PacketFaults, TheSameSeedGivesTheSameFaults) {
  const PacketFaults faults{.loss = 0.1, .duplicate = 0.1, .reorder = 0.1};
  EXPECT_EQ(draw(faults, 1000, 5), draw(faults, 1000, 5));
  EXPECT_NE(draw(faults, 1000, 5), draw(faults, 1000, 6));
}

TEST(PacketFaults, NamesAndCountersAreUnique) {
  std::set<std::string> names, counters;
  for (const PacketFaultInfo& f : kPacketFaults) {
    EXPECT_TRUE(names.insert(std::string(f.name)).second) << f.name;
    EXPECT_TRUE(counters.insert(f.counter).second) << f.counter;
    EXPECT_EQ(std::string(f.counter).find("fault_packets_"), 0u) << f.counter;
    EXPECT_NE(std::string(f.meaning), "") << f.name;
  }
}

}  // namespace
}  // namespace verbena::wire
