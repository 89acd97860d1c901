// Processes with several lanes: they occur in seeds, and the checks of withdrawn keys can fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/keyed_area.h"
#include "sim/seed_run.h"
#include "sim/world.h"

namespace verbena::sim {
namespace {

TEST(Lanes, OccurInRunsOfSeveralKinds) {
  std::map<std::pair<RunKind, bool>, int> seen;  // by kind, and whether memory is shared
  for (uint64_t seed = 0; seed < 80; ++seed) {
    const RunResult r = run_seed(seed);
    if (r.lanes.most > 1) ++seen[{r.kind, shares_memory(seed)}];
    EXPECT_TRUE(has_lanes(seed) || r.lanes.most == 1) << "seed " << seed;
  }
  for (const RunKind kind : {RunKind::Correct, RunKind::Hostile, RunKind::Withdrawn}) {
    for (const bool memory : {false, true}) {
      EXPECT_GT((seen[{kind, memory}]), 0) << static_cast<int>(kind) << " " << memory;
    }
  }
}

TEST(Lanes, KeysAreWithdrawnBetweenTurnsDuringTurnsAndInWaits) {
  LaneCounts all;
  int shared_completion_queues = 0;
  for (uint64_t seed = 5; seed < 200; seed += 20) {
    const RunResult r = run_withdrawn(seed);
    all.withdrawals += r.lanes.withdrawals;
    all.in_turns += r.lanes.in_turns;
    all.turns_in_waits += r.lanes.turns_in_waits;
    all.refused += r.lanes.refused;
    if (r.shape.find("one completion queue") != std::string::npos) ++shared_completion_queues;
  }
  EXPECT_GT(all.withdrawals, all.in_turns);
  EXPECT_GT(all.in_turns, 0u);
  EXPECT_GT(all.turns_in_waits, 0u);
  EXPECT_GT(all.refused, 0u);
  EXPECT_GT(shared_completion_queues, 0);
  EXPECT_LT(shared_completion_queues, 10);
}

TEST(Lanes, HaveOneGidAndOneRegistryButSlotsOfTheirOwn) {
  World world{1};
  Host& first = world.add_host();
  Host& second = world.add_lane(first);
  EXPECT_EQ(first.gid(), second.gid());
  EXPECT_EQ(&first.engine().memory(), &second.engine().memory());
  core::CompletionQueue& cq = first.create_cq(8);
  EXPECT_NE(first.create_qp(cq, cq, {}).qpn().slot(), second.create_qp(cq, cq, {}).qpn().slot());
}

class LaneCheckersTest : public testing::Test {
 protected:
  static bool has(const std::vector<std::string>& problems, const std::string& text) {
    return std::ranges::any_of(
        problems, [&](const std::string& p) { return p.find(text) != std::string::npos; });
  }
  core::MemoryRegistry& memory() { return process_.memory(); }

  World world_{1};
  Host& first_{world_.add_host()};
  Host& second_{world_.add_lane(first_)};
  Process& process_{first_.process()};
  Report report_;
};

TEST_F(LaneCheckersTest, AcceptAWithdrawalThatWaits) {
  const Region region = first_.add_region(64, core::kLocalWrite | core::kRemoteWrite);
  EXPECT_TRUE(process_.finds({region.key, region.iova}));
  EXPECT_TRUE(process_.remove_region(region.key).ok());
  EXPECT_FALSE(process_.finds({region.key, region.iova}));
  EXPECT_TRUE(process_.problems().empty());
}

TEST_F(LaneCheckersTest, DetectAWithdrawalThatDoesNotWait) {
  const Region region = first_.add_region(64, core::kLocalWrite);
  EXPECT_TRUE(process_.withdraw({region.key, region.iova}, [] { return Status(); }).ok());
  EXPECT_TRUE(has(process_.problems(), "without waiting for lookups"));
  EXPECT_TRUE(has(process_.problems(), "a withdrawn key is still found"));
}

TEST_F(LaneCheckersTest, DetectAWaitBeforeTheKeyIsWithdrawn) {
  const Region region = first_.add_region(64, core::kLocalWrite);
  const auto call = [&] {
    process_.await_lookups(nullptr);
    return memory().remove_region(region.key);
  };
  EXPECT_TRUE(process_.withdraw({region.key, region.iova}, call).ok());
  EXPECT_TRUE(has(process_.problems(), "waits for lookups of a key that is still found"));
}

TEST_F(LaneCheckersTest, DetectARebindThatWaitsTooEarlyOrNotAtAll) {
  const Region region = first_.add_region(64, core::kLocalWrite | core::kWindowBind);
  const uint32_t window = memory().add_window(1, core::WindowType::Type1).value();
  const core::WindowBinding binding{region.key, region.iova, 64, core::kRemoteRead, window + 1};
  const core::MemoryView& view = first_.engine().state().memory;
  ASSERT_TRUE(memory().bind_window(view, 1, wire::Qpn(5), window, binding));
  const KeyUse use{binding.new_rkey, region.iova};
  process_.rebind_posted(use);
  process_.await_lookups(&view);
  EXPECT_TRUE(has(process_.problems(), "waits for lookups of a window that is still found"));
  process_.rebind_completed(use, true);
  EXPECT_TRUE(has(process_.problems(), "bound again without waiting for lookups"));
}

TEST_F(LaneCheckersTest, AcceptARebindThatWaits) {
  const Region region = first_.add_region(64, core::kLocalWrite | core::kWindowBind);
  const uint32_t window = memory().add_window(1, core::WindowType::Type1).value();
  core::WindowBinding binding{region.key, region.iova, 64, core::kRemoteRead, window ^ 1};
  const core::MemoryView& view = first_.engine().state().memory;
  ASSERT_TRUE(memory().bind_window(view, 1, wire::Qpn(5), window, binding));
  const KeyUse use{binding.new_rkey, region.iova};
  process_.rebind_posted(use);
  binding.new_rkey = window ^ 2;
  ASSERT_TRUE(memory().bind_window(view, 1, wire::Qpn(5), use.key, binding));
  process_.rebind_completed(use, true);
  EXPECT_TRUE(process_.problems().empty());
}

TEST_F(LaneCheckersTest, PutOffTheEndOfAWithdrawalUntilNoLaneIsInATurn) {
  bool is_over = false;
  {
    const Process::Call outer(process_, first_);
    {
      const Process::Call inner(process_, second_);
      process_.after_lookups([&] { is_over = true; });
    }
    EXPECT_FALSE(is_over);
  }
  EXPECT_TRUE(is_over);
}

class KeyedAreaTest : public LaneCheckersTest {
 protected:
  KeyedAreaTest() {
    area_.register_region();
    memory_ = memory().region_of(area_.use(0)->key)->base;
  }
  // Until the area has no key. A call may also give the key other memory.
  void deregister() {
    while (area_.is_valid()) area_.withdraw_by_call();
  }

  KeyedArea area_{world_, report_, first_, KeyedArea::Kind::Region, true};
  std::byte* memory_ = nullptr;
};

TEST_F(KeyedAreaTest, DetectsAChangeAfterTheWithdrawal) {
  memory_[7] = std::byte{1};
  deregister();
  area_.check_untouched();
  EXPECT_TRUE(report_.ok());
  memory_[7] = std::byte{1};
  area_.check_untouched();
  EXPECT_TRUE(has(report_.problems(), "memory changed after its key was withdrawn"));
}

TEST_F(KeyedAreaTest, AcceptsAnAccessWithAValidKey) {
  const Process::Call call(process_, second_);
  area_.check_access(memory_);
  EXPECT_TRUE(report_.ok());
}

TEST_F(KeyedAreaTest, DetectsAnAccessAfterTheWithdrawalReturned) {
  deregister();
  const Process::Call call(process_, second_);
  area_.check_access(memory_);
  EXPECT_TRUE(has(report_.problems(), "a lane accessed memory after its key was withdrawn"));
}

TEST_F(KeyedAreaTest, AcceptsAnAccessInATurnThatBeganBeforeTheWithdrawal) {
  const Process::Call call(process_, second_);
  area_.withdraw_by_call();
  area_.check_access(memory_);
  EXPECT_TRUE(report_.ok());
}

TEST_F(KeyedAreaTest, DetectsAnAccessInATurnThatBeganAfterTheWithdrawal) {
  const Process::Call withdrawing(process_, first_);
  area_.withdraw_by_call();
  const Process::Call call(process_, second_);
  area_.check_access(memory_);
  EXPECT_TRUE(has(report_.problems(), "a lane began to access memory after"));
}

TEST_F(KeyedAreaTest, KnowsWhichRequestsMaySucceedAndFail) {
  const KeyedArea::Use before = *area_.use(0);
  EXPECT_TRUE(area_.may_succeed(before));
  EXPECT_FALSE(area_.may_fail(before));
  deregister();
  EXPECT_TRUE(area_.may_succeed(before));  // it may have been executed before
  EXPECT_TRUE(area_.may_fail(before));
  const KeyedArea::Use after = *area_.use_refused(0);
  EXPECT_EQ(after.key, before.key);
  EXPECT_FALSE(area_.may_succeed(after));
  EXPECT_TRUE(area_.may_fail(after));
}

}  // namespace
}  // namespace verbena::sim
