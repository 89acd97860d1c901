// The regions and queue pairs that an engine exposes for one-sided access.
#include <map>

#include "tests/unit/core/engine_support.h"
#include "wire/one_sided.h"

namespace verbena::core {
namespace {

class FakeExposure final : public wire::Exposure {
 public:
  void expose(const wire::ExposedRegion& region) override { regions[region.key] = region; }
  void withdraw(uint32_t key) override { regions.erase(key); }
  void expose(wire::Qpn qpn, const wire::ExposedQp& qp) override { qps[qpn.value()] = qp; }
  void withdraw(wire::Qpn qpn) override { qps.erase(qpn.value()); }
  std::map<uint32_t, wire::ExposedRegion> regions;
  std::map<uint32_t, wire::ExposedQp> qps;
};

class EngineExposureTest : public EngineTest {
 public:
  EngineExposureTest() {
    engine_.expose_through(&exposed_);
    exposed_.regions.clear();  // of the fixture
  }
  FakeExposure exposed_;
};

TEST_F(EngineExposureTest, ExposesRegionsWithTheirRemoteAccess) {
  MemoryRegistry& memory = engine_.memory();
  const uint32_t key =
      memory.add_region(kPd, memory_.data(), 100, 0x40, kLocalWrite | kRemoteWrite | kRemoteAtomic)
          .value();
  ASSERT_TRUE(exposed_.regions.contains(key));
  EXPECT_EQ(exposed_.regions[key].access, kRemoteWrite);
  EXPECT_EQ(exposed_.regions[key].iova, 0x40u);
  EXPECT_EQ(exposed_.regions[key].base, reinterpret_cast<uintptr_t>(memory_.data()));
  ASSERT_TRUE(memory.change_region(key, {kPd, memory_.data(), 50, 0x40, kRemoteRead, {}}).ok());
  EXPECT_EQ(exposed_.regions[key].length, 50u);
  EXPECT_EQ(exposed_.regions[key].access, kRemoteRead);
  ASSERT_TRUE(memory.change_region(key, {kPd, memory_.data(), 50, 0x40, kLocalWrite, {}}).ok());
  EXPECT_TRUE(exposed_.regions.empty()) << "peers have no access";
  ASSERT_TRUE(memory.change_region(key, {kPd, memory_.data(), 50, 0x40, kRemoteRead, {}}).ok());
  ASSERT_TRUE(memory.remove_region(key).ok());
  EXPECT_TRUE(exposed_.regions.empty());
}

TEST_F(EngineExposureTest, ExposesToEveryEngineOfTheRegistry) {
  const uint32_t before =
      engine_.memory().add_region(kPd, memory_.data(), 100, 0x40, kRemoteRead).value();
  Engine second({.slot = 7, .memory = &engine_.memory()});
  FakeExposure exposed_too;
  second.expose_through(&exposed_too);
  EXPECT_TRUE(exposed_too.regions.contains(before)) << "registered before the engine existed";
  const uint32_t after =
      engine_.memory().add_region(kPd, memory_.data(), 100, 0x40, kRemoteRead).value();
  EXPECT_TRUE(exposed_.regions.contains(after));
  EXPECT_TRUE(exposed_too.regions.contains(after));
  ASSERT_TRUE(engine_.memory().remove_region(before).ok());
  EXPECT_FALSE(exposed_.regions.contains(before));
  EXPECT_FALSE(exposed_too.regions.contains(before));
  second.expose_through(nullptr);
  ASSERT_TRUE(engine_.memory().remove_region(after).ok());
  EXPECT_TRUE(exposed_too.regions.contains(after)) << "it is no longer told";
}

TEST_F(EngineExposureTest, DoesNotExposeMemoryThatTheCpuCannotAccess) {
  RegionInfo region{kPd, memory_.data(), 100, 0, kRemoteRead, {}};
  static MemoryBacking backing;
  region.backing = &backing;
  backing.copy_in = [](std::byte*, std::span<const std::byte>) {};
  backing.copy_out = [](std::span<std::byte>, const std::byte*) {};
  ASSERT_TRUE(engine_.memory().add_region(region).ok());
  EXPECT_TRUE(exposed_.regions.empty());
}

TEST_F(EngineExposureTest, DoesNotExposeOnDemandOrNullRegions) {
  RegionInfo region{kPd, memory_.data(), 100, 0, kRemoteRead, {}};
  static MemoryBacking backing;
  region.backing = &backing;
  backing.reachable = [](const std::byte*, uint64_t, bool) { return true; };
  ASSERT_TRUE(engine_.memory().add_region(region).ok());
  ASSERT_TRUE(engine_.memory().add_null_region(kPd).ok());
  EXPECT_TRUE(exposed_.regions.empty());
}

TEST_F(EngineExposureTest, ExposesAQueuePairWhileItExecutesRequests) {
  connect();
  const uint32_t qpn = qp().qpn().value();
  ASSERT_TRUE(exposed_.qps.contains(qpn));
  EXPECT_EQ(exposed_.qps[qpn].peer, kPeerQpn);
  EXPECT_EQ(exposed_.qps[qpn].source, our_gid_);
  EXPECT_EQ(exposed_.qps[qpn].destination, peer_gid_);
  EXPECT_EQ(exposed_.qps[qpn].access, kRemoteWrite | kRemoteRead);
  to_state(qp(), QpState::Error);
  EXPECT_TRUE(exposed_.qps.empty());
  connect({.access = kRemoteRead});
  EXPECT_EQ(exposed_.qps[qp().qpn().value()].access, kRemoteRead);
  engine_.destroy_qp(qp_, now_);
  EXPECT_TRUE(exposed_.qps.empty());
}

TEST_F(EngineExposureTest, ExposesNoReadAccessIfMaxDestRdAtomicIsZero) {
  connect({.max_dest_read_atomic = 0});
  EXPECT_EQ(exposed_.qps[qp().qpn().value()].access, kRemoteWrite);
}

TEST_F(EngineExposureTest, WithdrawsAQueuePairThatFails) {
  connect({.access = 0});
  ASSERT_FALSE(exposed_.qps.empty());
  wire::Packet p = request(wire::Opcode::RcWriteOnly, 500);
  p.reth.length = 8;
  receive(p, pattern(8));
  EXPECT_EQ(qp().state(), QpState::Error);
  EXPECT_TRUE(exposed_.qps.empty());
}

}  // namespace
}  // namespace verbena::core
