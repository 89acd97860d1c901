// When the registry waits for lookups of other engines, and what they find meanwhile.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <utility>

#include "core/memory_view.h"

namespace verbena::core {
namespace {

// Runs the test's code where other engines end their lookups.
struct FakeBarrier final : LookupBarrier {
  void await_lookups(const MemoryView* caller) override {
    ++calls;
    last_caller = caller;
    if (meanwhile) meanwhile();
  }
  int calls = 0;
  const MemoryView* last_caller = nullptr;
  std::function<void()> meanwhile;
};

class MemoryRegistryBarrier : public testing::Test {
 protected:
  static constexpr uint32_t kPd = 3;
  static constexpr wire::Qpn kQp{0x010002};
  static constexpr uint32_t kAll =
      kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic | kWindowBind;

  uint32_t add(size_t offset = 0) {
    return registry_.add_region(kPd, memory_.data() + offset, 500, 0, kAll).value();
  }
  // By another engine than the one that makes the call.
  MemoryArea resolve(uint32_t key) { return other_.resolve(key, kPd, kQp, 0, 8, kRemoteRead); }
  bool bind(uint32_t window, uint32_t new_rkey, uint32_t region, uint64_t length = 100) {
    return view_.bind_window(kPd, kQp, window, {region, 0, length, kRemoteRead, new_rkey});
  }
  uint32_t add_window(WindowType type) { return registry_.add_window(kPd, type).value(); }
  static bool same_place(uint32_t a, uint32_t b) { return a >> 8 == b >> 8; }

  std::array<std::byte, 1000> memory_{};
  FakeBarrier barrier_;
  MemoryRegistry registry_{99, &barrier_};
  MemoryView view_{registry_};
  MemoryView other_{registry_};
};

TEST_F(MemoryRegistryBarrier, RemovedRegionIsUnknownBeforeAndItsPlaceReusedAfter) {
  const uint32_t key = add();
  uint32_t added_meanwhile = 0;
  barrier_.meanwhile = [&] {
    EXPECT_EQ(resolve(key), nullptr);
    EXPECT_EQ(registry_.remove_region(key).error().code, EINVAL);
    added_meanwhile = add(500);
  };
  ASSERT_NE(resolve(key), nullptr);
  EXPECT_TRUE(registry_.remove_region(key).ok());
  EXPECT_EQ(barrier_.calls, 1);
  EXPECT_EQ(barrier_.last_caller, nullptr);
  EXPECT_FALSE(same_place(added_meanwhile, key));
  const uint32_t next = add();
  EXPECT_TRUE(same_place(next, key));
  EXPECT_NE(next, key);
}

TEST_F(MemoryRegistryBarrier, ChangedRegionIsUnknownUntilAllHaveLeftTheOldOne) {
  const uint32_t key = add();
  barrier_.meanwhile = [&] {
    EXPECT_EQ(resolve(key), nullptr);
    EXPECT_FALSE(same_place(add(), key));
  };
  EXPECT_TRUE(registry_.change_region(key, {kPd, memory_.data() + 500, 500, 0, kAll}).ok());
  EXPECT_EQ(barrier_.calls, 1);
  EXPECT_EQ(resolve(key), memory_.data() + 500);
}

TEST_F(MemoryRegistryBarrier, RemovedWindowIsUnknownBeforeAndItsPlaceReusedAfter) {
  for (const WindowType type : {WindowType::Type1, WindowType::Type2}) {
    const uint32_t region = add();
    const uint32_t window = add_window(type);
    const uint32_t key = window ^ 1;
    ASSERT_TRUE(bind(window, key, region));
    ASSERT_NE(resolve(key), nullptr);
    barrier_.calls = 0;
    barrier_.meanwhile = [&] {
      EXPECT_EQ(resolve(key), nullptr);
      EXPECT_FALSE(bind(window, key, region));
      EXPECT_FALSE(same_place(add_window(type), window));
    };
    EXPECT_TRUE(registry_.remove_window(window).ok());
    EXPECT_EQ(barrier_.calls, 1);
    barrier_.meanwhile = {};
    EXPECT_TRUE(same_place(add_window(type), window));
    EXPECT_TRUE(registry_.remove_region(region).ok());
  }
}

TEST_F(MemoryRegistryBarrier, ReboundType1WindowWaitsOnBehalfOfItsEngine) {
  const uint32_t first = add(), second = add(500);
  const uint32_t window = add_window(WindowType::Type1);
  ASSERT_TRUE(bind(window, window ^ 1, first));
  EXPECT_EQ(barrier_.calls, 0);  // nobody could use it before
  barrier_.meanwhile = [&] {
    EXPECT_EQ(resolve(window ^ 1), nullptr);
    EXPECT_EQ(resolve(window ^ 2), memory_.data() + 500);
    // The region is free, but the call that removes it waits in turn.
    const auto outer = std::exchange(barrier_.meanwhile, {});
    EXPECT_TRUE(registry_.remove_region(first).ok());
    EXPECT_EQ(barrier_.last_caller, nullptr);
  };
  EXPECT_TRUE(bind(window, window ^ 2, second));
  EXPECT_EQ(barrier_.calls, 2);
  EXPECT_TRUE(bind(window, window ^ 3, second, 0));  // unbinds it
  EXPECT_EQ(barrier_.calls, 3);
  EXPECT_EQ(barrier_.last_caller, &view_);
  EXPECT_EQ(resolve(window ^ 3), nullptr);
}

TEST_F(MemoryRegistryBarrier, CallsThatWithdrawNothingDoNotWait) {
  const uint32_t region = add();
  const uint32_t window = add_window(WindowType::Type2);
  const uint32_t key = window ^ 1;
  ASSERT_TRUE(bind(window, key, region));
  EXPECT_EQ(registry_.remove_region(region).error().code, EBUSY);
  EXPECT_EQ(registry_.change_region(region, {kPd, memory_.data(), 8, 0, kAll}).error().code, EBUSY);
  EXPECT_TRUE(view_.invalidate(kPd, kQp, key));  // only the engine of its queue pair used it
  EXPECT_FALSE(registry_.change_region(region, {kPd, memory_.data(), 8, 0, kRemoteWrite}).ok());
  EXPECT_EQ(registry_.remove_region(region ^ 1).error().code, EINVAL);
  EXPECT_EQ(barrier_.calls, 0);
  EXPECT_NE(resolve(region), nullptr);
}

}  // namespace
}  // namespace verbena::core
