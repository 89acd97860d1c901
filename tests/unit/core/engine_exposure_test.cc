// What an engine exposes to peers that access its memory directly: regions and queue pairs.
#include <map>

#include "tests/unit/core/engine_support.h"
#include "wire/one_sided.h"

namespace verbena::core {
namespace {

class FakeExposure final : public wire::Exposure {
 public:
  void show(const wire::ExposedRegion& region) override { regions[region.key] = region; }
  void hide(uint32_t key) override { regions.erase(key); }
  void show(wire::Qpn qpn, const wire::ExposedQp& qp) override { qps[qpn.value()] = qp; }
  void hide(wire::Qpn qpn) override { qps.erase(qpn.value()); }
  std::map<uint32_t, wire::ExposedRegion> regions;
  std::map<uint32_t, wire::ExposedQp> qps;
};

class ExposureTest : public EngineTest {
 public:
  ExposureTest() { engine_.expose_through(&shown_); }
  FakeExposure shown_;
};

TEST_F(ExposureTest, RegionsAreShownWithWhatPeersMayDo) {
  MemoryRegistry& memory = engine_.memory();
  const uint32_t key =
      memory.add_region(kPd, memory_.data(), 100, 0x40, kLocalWrite | kRemoteWrite | kRemoteAtomic)
          .value();
  ASSERT_TRUE(shown_.regions.contains(key));
  EXPECT_EQ(shown_.regions[key].access, kRemoteWrite);
  EXPECT_EQ(shown_.regions[key].iova, 0x40u);
  EXPECT_EQ(shown_.regions[key].base, reinterpret_cast<uintptr_t>(memory_.data()));
  ASSERT_TRUE(memory.change_region(key, {kPd, memory_.data(), 50, 0x40, kRemoteRead, {}}).ok());
  EXPECT_EQ(shown_.regions[key].length, 50u);
  EXPECT_EQ(shown_.regions[key].access, kRemoteRead);
  ASSERT_TRUE(memory.change_region(key, {kPd, memory_.data(), 50, 0x40, kLocalWrite, {}}).ok());
  EXPECT_TRUE(shown_.regions.empty()) << "peers may do nothing";
  ASSERT_TRUE(memory.change_region(key, {kPd, memory_.data(), 50, 0x40, kRemoteRead, {}}).ok());
  ASSERT_TRUE(memory.remove_region(key).ok());
  EXPECT_TRUE(shown_.regions.empty());
}

TEST_F(ExposureTest, MemoryThatMayNotBeThereIsNotShown) {
  RegionInfo region{kPd, memory_.data(), 100, 0, kRemoteRead, {}};
  region.backing.reachable = [](const std::byte*, uint64_t, bool) { return true; };
  ASSERT_TRUE(engine_.memory().add_region(region).ok());
  ASSERT_TRUE(engine_.memory().add_null_region(kPd).ok());
  EXPECT_TRUE(shown_.regions.empty());
}

TEST_F(ExposureTest, AQueuePairIsShownWhileItExecutesRequests) {
  connect();
  const uint32_t qpn = qp().qpn().value();
  ASSERT_TRUE(shown_.qps.contains(qpn));
  EXPECT_EQ(shown_.qps[qpn].peer, kPeerQpn);
  EXPECT_EQ(shown_.qps[qpn].source, our_gid_);
  EXPECT_EQ(shown_.qps[qpn].destination, peer_gid_);
  EXPECT_EQ(shown_.qps[qpn].access, kRemoteWrite | kRemoteRead);
  to_state(qp(), QpState::Error);
  EXPECT_TRUE(shown_.qps.empty());
  connect({.access = kRemoteRead});
  EXPECT_EQ(shown_.qps[qp().qpn().value()].access, kRemoteRead);
  engine_.destroy_qp(qp_, now_);
  EXPECT_TRUE(shown_.qps.empty());
}

TEST_F(ExposureTest, WhereNoReadIsTakenNoneIsShown) {
  connect({.max_dest_read_atomic = 0});
  EXPECT_EQ(shown_.qps[qp().qpn().value()].access, kRemoteWrite);
}

TEST_F(ExposureTest, AQueuePairThatFailsIsHidden) {
  connect({.access = 0});
  ASSERT_FALSE(shown_.qps.empty());
  wire::Packet p = request(wire::Opcode::RcWriteOnly, 500);
  p.reth.length = 8;
  receive(p, pattern(8));
  EXPECT_EQ(qp().state(), QpState::Error);
  EXPECT_TRUE(shown_.qps.empty());
}

}  // namespace
}  // namespace verbena::core
