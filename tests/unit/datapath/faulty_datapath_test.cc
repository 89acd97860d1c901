// Random faults: every packet is accounted for, the same seed gives the same faults, and no packet
// is delayed forever.
#include "datapath/faulty_datapath.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/unit/datapath/fake_datapath.h"
#include "wire/headers.h"

namespace verbena::datapath {
namespace {

struct Outcome {
  std::vector<uint32_t> psns;
  uint64_t marked = 0;
  std::vector<Counter> counters;

  uint64_t counter(const std::string& name) const {
    for (const Counter& c : counters) {
      if (c.name == name) return c.value;
    }
    return UINT64_MAX;
  }
};

void push(Datapath& datapath, uint32_t psn) {
  wire::TxPacket p;
  wire::Bth bth;
  bth.psn = wire::Psn(psn);
  bth.store(p.header.data());
  p.header_bytes = wire::kBthBytes;
  const std::byte content[3] = {std::byte(psn), std::byte(psn >> 8), std::byte{7}};
  const std::span<const std::byte> part(content);
  p.payload = {&part, 1};
  p.pad = 1;
  datapath.sink().push(p);
}

// Sends `count` packets in batches and receives until no packet is delayed.
Outcome transfer(const std::string& faults, uint32_t count,
                 std::unique_ptr<FakeDatapath> medium = std::make_unique<FakeDatapath>()) {
  auto parsed = parse_faults(faults);
  EXPECT_TRUE(parsed.ok());
  FaultyDatapath datapath(std::move(medium), parsed.value());
  wire::Route route;
  route.traffic_class = wire::kEct0;
  EXPECT_TRUE(datapath.open_path(route).ok());
  Outcome outcome;
  const auto receive = [&] {
    for (const wire::RxPacket& p : datapath.receive()) {
      const uint32_t psn = wire::Bth::load(p.bytes.data()).psn.value();
      EXPECT_EQ(p.bytes.size() + p.separate_payload.size(), 16u);
      const auto payload =
          p.separate_payload.empty() ? p.bytes.subspan(wire::kBthBytes) : p.separate_payload;
      EXPECT_EQ(payload[0], std::byte(psn));
      EXPECT_EQ(payload[2], std::byte{7});
      EXPECT_NE(p.meta, nullptr);
      outcome.marked += wire::is_marked(p.meta->traffic_class);
      outcome.psns.push_back(psn);
    }
  };
  for (uint32_t psn = 0; psn < count;) {
    for (int i = 0; i < 20 && psn < count && datapath.sink().room() > 0; ++i) push(datapath, psn++);
    datapath.flush();
    receive();
  }
  for (int i = 0; i < 1000 && datapath.pending(); ++i) receive();
  EXPECT_FALSE(datapath.pending());
  datapath.append_counters(outcome.counters);
  return outcome;
}

bool in_order(const Outcome& o) { return std::ranges::is_sorted(o.psns); }

std::vector<uint32_t> sorted(std::vector<uint32_t> v) {
  std::ranges::sort(v);
  return v;
}

TEST(FaultyDatapath, IsTransparentWithoutFaults) {
  const Outcome o = transfer("", 1000);
  EXPECT_EQ(o.psns.size(), 1000u);
  EXPECT_TRUE(in_order(o));
  EXPECT_EQ(o.counter("fake"), 1u);
}

TEST(FaultyDatapath, MarksOnlyEcnCapablePackets) {
  for (const uint8_t ecn : std::initializer_list<uint8_t>{0, 1, 2, 3}) {
    FaultyDatapath datapath(std::make_unique<FakeDatapath>(), parse_faults("mark=0.5").value());
    wire::Route route;
    route.traffic_class = static_cast<uint8_t>(0x68 | ecn);
    ASSERT_TRUE(datapath.open_path(route).ok());
    for (uint32_t psn = 0; psn < 50; ++psn) push(datapath, psn);
    datapath.flush();
    uint64_t marked = 0;
    for (const wire::RxPacket& p : datapath.receive()) {
      if (p.meta->traffic_class == route.traffic_class) continue;
      EXPECT_EQ(p.meta->traffic_class, 0x6B);
      ++marked;
    }
    const bool may_change = ecn == 1 || ecn == 2;
    EXPECT_EQ(marked > 0, may_change);
    EXPECT_LT(marked, 50u);
  }
}

TEST(FaultyDatapath, LosesAndCorrupts) {
  const Outcome o = transfer("loss=0.1,corrupt=0.05,seed=3", 10'000);
  EXPECT_EQ(o.psns.size() + o.counter("fault_packets_lost") + o.counter("fault_packets_corrupted"),
            10'000u);
  EXPECT_NEAR(static_cast<double>(o.counter("fault_packets_lost")), 1000, 150);
  EXPECT_NEAR(static_cast<double>(o.counter("fault_packets_corrupted")), 500, 100);
  EXPECT_TRUE(in_order(o));
}

TEST(FaultyDatapath, Duplicates) {
  const Outcome o = transfer("duplicate=0.1", 5000);
  EXPECT_EQ(o.psns.size(), 5000 + o.counter("fault_packets_duplicated"));
  EXPECT_NEAR(static_cast<double>(o.counter("fault_packets_duplicated")), 500, 100);
}

TEST(FaultyDatapath, ReordersAndDelaysWithoutLosing) {
  for (const char* faults : {"reorder=0.1", "delay=0.1", "reorder=0.2,delay=0.2,hold=7,seed=9",
                             "reorder=1", "delay=1"}) {
    const Outcome o = transfer(faults, 3000);
    const auto psns = sorted(o.psns);
    ASSERT_EQ(psns.size(), 3000u) << faults;
    for (uint32_t i = 0; i < 3000; ++i) ASSERT_EQ(psns[i], i);
    if (std::string(faults) != "reorder=1") {
      EXPECT_FALSE(in_order(o)) << faults;
    }
  }
}

TEST(FaultyDatapath, InjectsFaultsOnTransmissionToo) {
  const Outcome o = transfer("reorder=0.1,duplicate=0.1,loss=0.1,send=1,seed=5", 3000);
  EXPECT_EQ(o.psns.size(),
            3000 + o.counter("fault_packets_duplicated") - o.counter("fault_packets_lost"));
  // Losses in both directions.
  EXPECT_NEAR(static_cast<double>(o.counter("fault_packets_lost")), 570, 150);
}

TEST(FaultyDatapath, InjectsFaultsIntoSharedMemoryPackets) {
  const Outcome o = transfer("reorder=0.1,delay=0.1,duplicate=0.1,loss=0.1,seed=5", 3000,
                             std::make_unique<FakeDatapath>(FakeDatapath::InMemory{}));
  EXPECT_EQ(o.psns.size(),
            3000 + o.counter("fault_packets_duplicated") - o.counter("fault_packets_lost"));
  EXPECT_FALSE(in_order(o));
}

TEST(FaultyDatapath, OffersPacketsOnly) {
  FaultyDatapath datapath(std::make_unique<FakeDatapath>(FakeDatapath::InMemory{}), Faults{});
  expect_packets_only(datapath);
  FaultyDatapath over_udp(std::make_unique<FakeDatapath>(), Faults{});
  EXPECT_EQ(over_udp.sink().local_peer(), nullptr);
}

TEST(FaultyDatapath, ReleasesReceivedPackets) {
  auto medium = std::make_unique<FakeDatapath>();
  const FakeDatapath& inner = *medium;
  FaultyDatapath datapath(std::move(medium), Faults{});
  datapath.release();
  EXPECT_EQ(inner.releases, 1);
}

TEST(FaultyDatapath, HalvesTheFreeSpaceOnlyForFaultsOnTransmission) {
  FaultyDatapath receiving(std::make_unique<FakeDatapath>(), Faults{});
  EXPECT_EQ(receiving.sink().room(), FakeDatapath::kRoom);
  FaultyDatapath sending(std::make_unique<FakeDatapath>(), Faults{.on_send = true});
  EXPECT_EQ(sending.sink().room(), FakeDatapath::kRoom / 2);
}

TEST(FaultyDatapath, SameSeedGivesTheSameFaults) {
  const char* const faults = "loss=0.1,duplicate=0.1,reorder=0.1,delay=0.1,seed=42";
  EXPECT_EQ(transfer(faults, 2000).psns, transfer(faults, 2000).psns);
  EXPECT_NE(transfer(faults, 2000).psns,
            transfer("loss=0.1,duplicate=0.1,reorder=0.1,delay=0.1,seed=43", 2000).psns);
}

TEST(FaultyDatapath, ParsesCarriesOutAndCountsEveryFaultOfTheList) {
  for (const wire::PacketFaultInfo& f : wire::kPacketFaults) {
    const Outcome o = transfer(std::string(f.name) + "=0.2", 2000);
    EXPECT_NEAR(static_cast<double>(o.counter(f.counter)), 400, 100) << f.name;
    EXPECT_TRUE(o.psns.size() != 2000 || !in_order(o) || o.marked != 0) << f.name;
  }
}

TEST(FaultyDatapath, TheErrorForAnUnknownFaultListsAllNames) {
  const std::string why = parse_faults("lose=0.1").error().why;
  EXPECT_EQ(why,
            "unknown fault; there are loss, duplicate, reorder, corrupt, delay, mark, hold, send "
            "and seed");
  for (const wire::PacketFaultInfo& f : wire::kPacketFaults) {
    EXPECT_NE(why.find(f.name), std::string::npos) << f.name;
  }
}

TEST(FaultyDatapath, DoesNotDelaySentPackets) {
  auto medium = std::make_unique<FakeDatapath>();
  FakeDatapath& inner = *medium;
  FaultyDatapath datapath(std::move(medium), Faults{.packet = {.delay = 1}, .on_send = true});
  push(datapath, 1);
  datapath.flush();
  EXPECT_EQ(inner.receive().size(), 1u);
  Outcome o;
  datapath.append_counters(o.counters);
  EXPECT_EQ(o.counter("fault_packets_delayed"), 0u);
}

TEST(FaultyDatapath, ParsesItsFaults) {
  auto f = parse_faults("loss=0.01,duplicate=0.001,reorder=0.02,corrupt=1,seed=7,hold=5,send=1");
  ASSERT_TRUE(f.ok());
  EXPECT_DOUBLE_EQ(f.value().packet.loss, 0.01);
  EXPECT_DOUBLE_EQ(f.value().packet.duplicate, 0.001);
  EXPECT_DOUBLE_EQ(f.value().packet.reorder, 0.02);
  EXPECT_DOUBLE_EQ(f.value().packet.corrupt, 1);
  EXPECT_EQ(f.value().seed, 7u);
  EXPECT_EQ(f.value().hold, 5u);
  EXPECT_TRUE(f.value().on_send);
  for (const char* bad : {"loss", "loss=", "loss=2", "loss=-0.1", "loss=nan", "loss=0.1x", "nope=1",
                          "hold=0", "send=2", "seed=x", "=", ",loss=0.1", "loss=0.1,,seed=1"}) {
    EXPECT_FALSE(parse_faults(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace verbena::datapath
