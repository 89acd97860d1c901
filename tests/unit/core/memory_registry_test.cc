// Access checks of regions and windows.
#include "core/memory_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace verbena::core {
namespace {

constexpr uint32_t kPd = 3;
constexpr wire::Qpn kQp{0x010002};
constexpr wire::Qpn kOtherQp{0x010003};
constexpr uint32_t kAll = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic | kWindowBind;

class MemoryRegistryTest : public testing::Test {
 public:
  uint32_t add(uint64_t iova, uint32_t access = kAll, uint64_t length = 1000) {
    return registry_.add_region(kPd, memory_.data(), length, iova, access).value();
  }
  MemoryArea resolve(uint32_t key, uint64_t address, uint64_t length, uint32_t access = kRemoteRead,
                     uint32_t pd = kPd, wire::Qpn qpn = kQp) {
    return view_.resolve(key, pd, qpn, address, length, access);
  }
  WindowBinding binding(uint32_t region, uint64_t address, uint64_t length, uint32_t new_rkey,
                        uint32_t access = kRemoteRead | kRemoteWrite) {
    return {region, address, length, access, new_rkey};
  }
  std::array<std::byte, 1000> memory_{};
  MemoryRegistry registry_{99};
  MemoryView view_{registry_};
};

TEST_F(MemoryRegistryTest, EnforcesExactBounds) {
  const uint32_t key = add(0x5000);
  EXPECT_EQ(resolve(key, 0x5000, 1000), memory_.data());
  EXPECT_EQ(resolve(key, 0x5000 + 999, 1), memory_.data() + 999);
  EXPECT_EQ(resolve(key, 0x5000 - 1, 1), nullptr);
  EXPECT_EQ(resolve(key, 0x5000 + 1000, 1), nullptr);
  EXPECT_EQ(resolve(key, 0x5000, 1001), nullptr);
  EXPECT_EQ(resolve(key, 0x5001, 1000), nullptr);
}

TEST_F(MemoryRegistryTest, RejectsAddressPlusLengthThatWraps) {
  const uint32_t key = add(0x5000);
  for (const uint64_t address :
       {~uint64_t{0}, ~uint64_t{0} - 0x4FFF, ~uint64_t{0} - 7, uint64_t{0}}) {
    for (const uint64_t length :
         {uint64_t{1}, uint64_t{8}, uint64_t{1000}, ~uint64_t{0}, ~uint64_t{0} - 0x4FFF}) {
      EXPECT_EQ(resolve(key, address, length), nullptr) << address << " " << length;
    }
  }
  EXPECT_EQ(resolve(key, 0x5000, ~uint64_t{0}), nullptr);
  EXPECT_EQ(registry_.add_region(kPd, memory_.data(), 1000, ~uint64_t{0} - 10, kAll).error().code,
            EINVAL);
  const uint32_t top = add(~uint64_t{0} - 1000);
  EXPECT_NE(resolve(top, ~uint64_t{0} - 1000, 1000), nullptr);
  EXPECT_EQ(resolve(top, ~uint64_t{0} - 1000, 1001), nullptr);
  EXPECT_EQ(resolve(top, ~uint64_t{0}, 2), nullptr);
}

TEST_F(MemoryRegistryTest, ChecksAccessFlagsAndProtectionDomain) {
  const uint32_t key = add(0, kLocalWrite | kRemoteRead);
  EXPECT_NE(resolve(key, 0, 8, kRemoteRead), nullptr);
  EXPECT_EQ(resolve(key, 0, 8, kRemoteWrite), nullptr);
  EXPECT_EQ(resolve(key, 0, 8, kRemoteAtomic), nullptr);
  EXPECT_EQ(resolve(key, 0, 8, kRemoteRead, kPd + 1), nullptr);
  EXPECT_NE(view_.resolve_local(key, kPd, 0, 8, kLocalWrite), nullptr);
  EXPECT_EQ(view_.resolve_local(key, kPd + 1, 0, 8, 0), nullptr);
  const uint32_t read_only = add(0, 0);
  EXPECT_NE(view_.resolve_local(read_only, kPd, 0, 8, 0), nullptr);
  EXPECT_EQ(view_.resolve_local(read_only, kPd, 0, 8, kLocalWrite), nullptr);
}

TEST_F(MemoryRegistryTest, RemoteWriteNeedsLocalWrite) {
  for (const uint32_t access : {kRemoteWrite, kRemoteAtomic}) {
    EXPECT_EQ(registry_.add_region(kPd, memory_.data(), 8, 0, access).error().code, EINVAL);
  }
  EXPECT_EQ(registry_.live(), 0u);
}

TEST_F(MemoryRegistryTest, RejectsKeysOfRemovedRegions) {
  std::set<uint32_t> seen;
  uint32_t previous = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint32_t key = add(0);
    EXPECT_NE(key, previous);
    EXPECT_EQ(resolve(previous, 0, 8), nullptr);
    ASSERT_TRUE(registry_.remove_region(key).ok());
    EXPECT_EQ(resolve(key, 0, 8), nullptr);
    EXPECT_EQ(registry_.remove_region(key).error().code, EINVAL);
    previous = key;
    seen.insert(key);
  }
  EXPECT_GT(seen.size(), 200u);
}

TEST_F(MemoryRegistryTest, KeysDoNotRevealTheirOrder) {
  std::set<uint32_t> uppers;
  uint32_t consecutive = 0, previous = 0;
  for (int i = 0; i < 4096; ++i) {
    const uint32_t key = add(0);
    EXPECT_TRUE(uppers.insert(key >> 8).second);
    if ((key >> 8) - previous == 1) ++consecutive;
    previous = key >> 8;
    EXPECT_NE(resolve(key, 0, 8), nullptr);
  }
  EXPECT_LT(consecutive, 5u);
  MemoryRegistry other(100);
  EXPECT_NE(other.add_region(kPd, memory_.data(), 8, 0, kAll).value(), *uppers.begin());
}

TEST_F(MemoryRegistryTest, RejectsGuessedKeys) {
  add(0);
  Prng prng(5);
  int found = 0;
  for (int i = 0; i < 100000; ++i)
    found += resolve(static_cast<uint32_t>(prng.next()), 0, 8) != nullptr;
  EXPECT_LE(found, 1);
}

TEST_F(MemoryRegistryTest, WindowGrantsOnlyItsBoundRange) {
  const uint32_t region = add(0x5000, kLocalWrite | kWindowBind);
  const uint32_t window = registry_.add_window(kPd, WindowType::Type2).value();
  EXPECT_EQ(resolve(window, 0x5000, 8), nullptr);
  const uint32_t bound = window ^ 0x55;
  ASSERT_TRUE(view_.bind_window(kPd, kQp, window, binding(region, 0x5000 + 100, 50, bound)));
  EXPECT_EQ(resolve(bound, 0x5000 + 100, 50, kRemoteWrite), memory_.data() + 100);
  EXPECT_EQ(resolve(bound, 0x5000 + 100, 51), nullptr);
  EXPECT_EQ(resolve(bound, 0x5000 + 99, 1), nullptr);
  EXPECT_EQ(resolve(bound, 0x5000 + 100, 8, kRemoteAtomic), nullptr);
  EXPECT_EQ(resolve(bound, 0x5000 + 100, 8, kRemoteRead, kPd, kOtherQp), nullptr);
  EXPECT_EQ(resolve(window, 0x5000 + 100, 8), nullptr);  // the old key
  EXPECT_EQ(resolve(region, 0x5000 + 100, 8), nullptr);  // the region itself has no remote access
  EXPECT_EQ(view_.resolve_local(bound, kPd, 0x5000 + 100, 8, 0), nullptr);
}

TEST_F(MemoryRegistryTest, Type2WindowMustBeInvalidatedBeforeItIsBoundAgain) {
  const uint32_t region = add(0);
  const uint32_t window = registry_.add_window(kPd, WindowType::Type2).value();
  const uint32_t first = window ^ 1, second = window ^ 2;
  ASSERT_TRUE(view_.bind_window(kPd, kQp, window, binding(region, 0, 10, first)));
  EXPECT_FALSE(view_.bind_window(kPd, kQp, first, binding(region, 0, 10, second)));
  EXPECT_EQ(registry_.remove_region(region).error().code, EBUSY);
  EXPECT_FALSE(view_.invalidate(kPd, kOtherQp, first));
  EXPECT_FALSE(view_.invalidate(kPd + 1, kQp, first));
  EXPECT_TRUE(view_.invalidate(kPd, kQp, first));
  EXPECT_FALSE(view_.invalidate(kPd, kQp, first));
  EXPECT_EQ(resolve(first, 0, 8), nullptr);
  ASSERT_TRUE(view_.bind_window(kPd, kQp, first, binding(region, 0, 10, second)));
  EXPECT_NE(resolve(second, 0, 8), nullptr);
  ASSERT_TRUE(registry_.remove_window(second).ok());
  EXPECT_TRUE(registry_.remove_region(region).ok());
}

TEST_F(MemoryRegistryTest, Type1WindowCanBeReboundAndServesEveryQueuePair) {
  const uint32_t region = add(0), other = add(0x9000);
  const uint32_t window = registry_.add_window(kPd, WindowType::Type1).value();
  ASSERT_TRUE(view_.bind_window(kPd, kQp, window, binding(region, 0, 10, window ^ 1)));
  EXPECT_NE(resolve(window ^ 1, 0, 8, kRemoteRead, kPd, kOtherQp), nullptr);
  ASSERT_TRUE(view_.bind_window(kPd, kQp, window ^ 1, binding(other, 0x9000, 10, window ^ 2)));
  EXPECT_TRUE(registry_.remove_region(region).ok());
  EXPECT_FALSE(view_.invalidate(kPd, kQp, window ^ 2));  // only type 2 can be invalidated
  ASSERT_TRUE(view_.bind_window(kPd, kQp, window ^ 2, binding(other, 0, 0, window ^ 3)));
  EXPECT_EQ(resolve(window ^ 3, 0x9000, 8), nullptr);
  EXPECT_TRUE(registry_.remove_region(other).ok());
}

TEST_F(MemoryRegistryTest, RejectsInvalidBindings) {
  const uint32_t region = add(0x5000);
  const uint32_t no_bind = add(0x5000, kLocalWrite | kRemoteRead);
  const uint32_t no_write = add(0x5000, kWindowBind);
  const uint32_t window = registry_.add_window(kPd, WindowType::Type2).value();
  const auto refused = [&](const WindowBinding& b, uint32_t pd = kPd) {
    return !view_.bind_window(pd, kQp, window, b);
  };
  EXPECT_TRUE(refused(binding(no_bind, 0x5000, 10, window ^ 1)));
  EXPECT_TRUE(refused(binding(no_write, 0x5000, 10, window ^ 1, kRemoteWrite)));
  EXPECT_TRUE(refused(binding(region, 0x5000 - 1, 10, window ^ 1)));
  EXPECT_TRUE(refused(binding(region, 0x5000 + 991, 10, window ^ 1)));
  EXPECT_TRUE(refused(binding(region, ~uint64_t{0} - 4, 10, window ^ 1)));
  EXPECT_TRUE(refused(binding(region, 0x5000, ~uint64_t{0}, window ^ 1)));
  EXPECT_TRUE(refused(binding(region, 0x5000, 10, window ^ 0x100)));  // another window's key
  EXPECT_TRUE(refused(binding(region, 0x5000, 10, window ^ 1), kPd + 1));
  EXPECT_TRUE(refused(binding(window, 0x5000, 10, window ^ 1)));
  EXPECT_FALSE(view_.bind_window(kPd, kQp, region, binding(region, 0x5000, 10, region)));
  EXPECT_FALSE(view_.invalidate(kPd, kQp, region));
  EXPECT_EQ(registry_.remove_window(region).error().code, EINVAL);
  EXPECT_EQ(registry_.remove_region(window).error().code, EINVAL);
  EXPECT_TRUE(registry_.remove_region(region).ok());  // no window is bound to it
}

TEST_F(MemoryRegistryTest, ZeroBasedWindowStartsAtAddressZero) {
  const uint32_t region = add(0x5000);
  const uint32_t window = registry_.add_window(kPd, WindowType::Type2).value();
  ASSERT_TRUE(view_.bind_window(
      kPd, kQp, window, binding(region, 0x5000 + 20, 30, window ^ 1, kRemoteRead | kZeroBased)));
  EXPECT_EQ(resolve(window ^ 1, 0, 30), memory_.data() + 20);
  EXPECT_EQ(resolve(window ^ 1, 1, 30), nullptr);
}

TEST_F(MemoryRegistryTest, RejectsWindowAccessThatTheRegionLacks) {
  const uint32_t region = add(0x5000);
  const uint32_t window = registry_.add_window(kPd, WindowType::Type2).value();
  const auto refused = [&](uint32_t access) {
    return !view_.bind_window(kPd, kQp, window, binding(region, 0x5000, 8, window ^ 1, access));
  };
  EXPECT_TRUE(refused(kWindowBind));
  EXPECT_TRUE(refused(1u << 30));
  EXPECT_TRUE(refused(kFlushGlobal));  // the region lacks this access
  EXPECT_FALSE(view_.bind_window(kPd, kQp, window, binding(region, 0, 0, window ^ 1)));  // type 2
}

TEST_F(MemoryRegistryTest, LocalWriteOfAWindowGrantsNoRemoteAccess) {
  const uint32_t region = add(0x5000);
  const uint32_t window = registry_.add_window(kPd, WindowType::Type2).value();
  ASSERT_TRUE(view_.bind_window(kPd, kQp, window,
                                binding(region, 0x5000, 8, window ^ 1, kLocalWrite | kRemoteRead)));
  EXPECT_NE(resolve(window ^ 1, 0x5000, 8, kRemoteRead), nullptr);
  EXPECT_EQ(resolve(window ^ 1, 0x5000, 8, kRemoteWrite), nullptr);
  EXPECT_EQ(resolve(window ^ 1, 0x5000, 8, kLocalWrite), nullptr);
}

TEST_F(MemoryRegistryTest, Type2WindowsAreUnboundWithTheirQueuePair) {
  const uint32_t region = add(0);
  const uint32_t mine = registry_.add_window(kPd, WindowType::Type2).value();
  const uint32_t other = registry_.add_window(kPd, WindowType::Type2).value();
  const uint32_t shared = registry_.add_window(kPd, WindowType::Type1).value();
  ASSERT_TRUE(view_.bind_window(kPd, kQp, mine, binding(region, 0, 10, mine ^ 1)));
  ASSERT_TRUE(view_.bind_window(kPd, kOtherQp, other, binding(region, 0, 10, other ^ 1)));
  ASSERT_TRUE(view_.bind_window(kPd, kQp, shared, binding(region, 0, 10, shared ^ 1)));
  registry_.unbind_windows_of(kQp);
  EXPECT_EQ(resolve(mine ^ 1, 0, 8), nullptr);
  EXPECT_NE(resolve(other ^ 1, 0, 8, kRemoteRead, kPd, kOtherQp), nullptr);
  EXPECT_NE(resolve(shared ^ 1, 0, 8), nullptr);
  ASSERT_TRUE(registry_.remove_window(other).ok());
  ASSERT_TRUE(registry_.remove_window(shared).ok());
  EXPECT_TRUE(registry_.remove_region(region).ok());
}

TEST_F(MemoryRegistryTest, ChangedRegionKeepsItsKey) {
  const uint32_t key = add(0x5000, kLocalWrite | kRemoteRead);
  const RegionInfo changed{kPd + 1, memory_.data() + 100, 50, 0x9000, kAll, {}};
  ASSERT_TRUE(registry_.change_region(key, changed).ok());
  EXPECT_EQ(resolve(key, 0x5000, 8), nullptr);
  EXPECT_EQ(resolve(key, 0x9000, 50, kRemoteWrite, kPd + 1), memory_.data() + 100);
  EXPECT_EQ(resolve(key, 0x9000, 50, kRemoteWrite, kPd), nullptr);
}

TEST_F(MemoryRegistryTest, RefusedChangeChangesNothing) {
  const uint32_t key = add(0x5000);
  RegionInfo changed{kPd, memory_.data(), 10, 0, kRemoteWrite, {}};
  EXPECT_EQ(registry_.change_region(key, changed).error().code, EINVAL);
  changed.access = kAll;
  changed.iova = ~uint64_t{0} - 5;
  EXPECT_EQ(registry_.change_region(key, changed).error().code, EINVAL);
  changed.iova = 0;
  EXPECT_EQ(registry_.change_region(key ^ 1, changed).error().code, EINVAL);
  const uint32_t window = registry_.add_window(kPd, WindowType::Type1).value();
  EXPECT_EQ(registry_.change_region(window, changed).error().code, EINVAL);
  ASSERT_TRUE(view_.bind_window(kPd, kQp, window, binding(key, 0x5000, 8, window ^ 1)));
  EXPECT_EQ(registry_.change_region(key, changed).error().code, EBUSY);
  EXPECT_EQ(resolve(key, 0x5000, 1000), memory_.data());
}

TEST_F(MemoryRegistryTest, NullRegionDiscardsWritesAndReadsZeros) {
  const uint32_t key = registry_.add_null_region(kPd).value();
  std::byte* to = view_.resolve_local(key, kPd, 0x1234567, 4096, kLocalWrite).at;
  ASSERT_NE(to, nullptr);
  std::fill_n(to, 4096, std::byte{0xFF});
  const std::byte* from = view_.resolve_local(key, kPd, 0, 4096, 0).at;
  ASSERT_NE(from, nullptr);
  EXPECT_TRUE(std::all_of(from, from + 4096, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(view_.resolve_local(key, kPd + 1, 0, 8, 0), nullptr);
  for (const uint32_t access : {0u, kRemoteRead, kRemoteWrite, kRemoteAtomic, kLocalWrite}) {
    EXPECT_EQ(resolve(key, 0, 8, access), nullptr);  // no peer may use it
  }
  EXPECT_EQ(registry_.change_region(key, {}).error().code, EINVAL);
  EXPECT_TRUE(registry_.remove_region(key).ok());
}

// An on-demand region is checked at each access, for exactly the bytes that are accessed.
TEST_F(MemoryRegistryTest, DoesNotResolveUnreachableMemory) {
  struct Checked {
    const std::byte* at;
    uint64_t bytes;
    bool write;
  };
  static std::vector<Checked> checked;
  static bool is_reachable;
  checked.clear();
  is_reachable = true;
  RegionInfo everything{kPd, nullptr, UINT64_MAX, 0, kAll, {}};
  static MemoryBacking backing;
  everything.backing = &backing;
  backing.reachable = [](const std::byte* at, uint64_t bytes, bool write) {
    checked.push_back({at, bytes, write});
    return is_reachable;
  };
  const uint32_t key = registry_.add_region(everything).value();
  const auto address = reinterpret_cast<uint64_t>(memory_.data());
  EXPECT_EQ(resolve(key, address, 8), memory_.data());
  EXPECT_EQ(resolve(key, address + 1, 9, kRemoteWrite), memory_.data() + 1);
  EXPECT_EQ(view_.resolve_local(key, kPd, address, 7, kLocalWrite), memory_.data());
  ASSERT_EQ(checked.size(), 3u);
  EXPECT_FALSE(checked[0].write);
  EXPECT_TRUE(checked[1].write && checked[2].write);
  EXPECT_EQ(checked[1].bytes, 9u);
  EXPECT_TRUE(view_.grants(key, kPd, kQp, address, uint64_t{1} << 40, kRemoteWrite));
  EXPECT_EQ(checked.size(), 3u);
  const uint32_t window = registry_.add_window(kPd, WindowType::Type1).value();
  ASSERT_TRUE(view_.bind_window(kPd, kQp, window, binding(key, address, 100, window ^ 1)));
  is_reachable = false;
  EXPECT_EQ(resolve(key, address, 8), nullptr);
  EXPECT_EQ(resolve(window ^ 1, address, 8), nullptr);
  EXPECT_EQ(view_.resolve_local(key, kPd, address, 8, 0), nullptr);
}

TEST(MemoryWindow, AFlushedBindLeavesTheWindowUsable) {
  MemoryRegistry registry(7);
  MemoryView view(registry);
  std::array<std::byte, 64> memory{};
  const auto iova = reinterpret_cast<uint64_t>(memory.data());
  const uint32_t region =
      registry.add_region(1, memory.data(), 64, iova, kLocalWrite | kWindowBind).value();
  const uint32_t window = registry.add_window(1, WindowType::Type2).value();
  // The program advanced to key + 1, but that bind was flushed; then it binds with key + 2.
  const wire::Qpn qpn(0x10005);
  const WindowBinding binding{region, iova, 64, kRemoteWrite,
                              (window & ~0xFFu) | ((window + 2) & 0xFF)};
  ASSERT_TRUE(view.bind_window(1, qpn, (window & ~0xFFu) | ((window + 1) & 0xFF), binding));
  EXPECT_NE(view.resolve(binding.new_rkey, 1, qpn, iova, 64, kRemoteWrite), nullptr);
  EXPECT_EQ(view.resolve(window, 1, qpn, iova, 64, kRemoteWrite), nullptr);
}

}  // namespace
}  // namespace verbena::core
