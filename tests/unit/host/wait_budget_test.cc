// How long a sender waits for destinations that are full, over explicit time.
#include "host/wait_budget.h"

#include <gtest/gtest.h>

namespace verbena::host {
namespace {

constexpr Instant kStart{seconds(5).ns};

struct Waited {
  int waits = 0;
  Duration in_all{};
};

// The waits of a sender for a destination that stays full.
Waited wait_for(WaitBudget& budget, uint64_t destination, Instant now) {
  Waited waited;
  while (waited.waits < 1000) {
    const auto wait = budget.next_wait(destination, now + waited.in_all);
    if (!wait) break;
    ++waited.waits;
    waited.in_all = waited.in_all + *wait;
  }
  return waited;
}

TEST(WaitBudget, AStoppedDestinationCostsItsBudgetOnce) {
  WaitBudget budget;
  const Waited first = wait_for(budget, 1, kStart);
  EXPECT_EQ(first.waits, WaitBudget::kWaitsPerDestination);
  EXPECT_EQ(first.in_all, microseconds(20'500));
  EXPECT_EQ(wait_for(budget, 1, kStart + seconds(1000)).waits, 0);
}

TEST(WaitBudget, ADestinationsBudgetDoesNotDependOnAnothers) {
  WaitBudget budget;
  wait_for(budget, 1, kStart);
  EXPECT_EQ(wait_for(budget, 2, kStart).waits, WaitBudget::kWaitsPerDestination);
  // A delivery to one destination does not restore the budget of another.
  budget.on_delivered(2);
  EXPECT_EQ(wait_for(budget, 1, kStart + seconds(1)).waits, 0);
  EXPECT_EQ(wait_for(budget, 2, kStart + seconds(1)).waits, WaitBudget::kWaitsPerDestination);
}

TEST(WaitBudget, ADestinationThatReadsAgainGetsItsBudgetBack) {
  WaitBudget budget;
  wait_for(budget, 1, kStart);
  budget.on_delivered(1);
  EXPECT_EQ(wait_for(budget, 1, kStart + seconds(1)).waits, WaitBudget::kWaitsPerDestination);
}

TEST(WaitBudget, AllWaitsTogetherTakeAtMostHalfOfTheTime) {
  WaitBudget budget;
  Instant now = kStart;
  Duration slept{};
  while (now - kStart <
         seconds(2)) {  // each reads one message now and then, so the sender waits for it
    for (uint64_t destination = 1; destination <= 20; ++destination) {
      budget.on_delivered(destination);
      const Waited waited = wait_for(budget, destination, now);
      now = now + waited.in_all + microseconds(10);
      slept = slept + waited.in_all;
    }
  }
  EXPECT_LE(slept, (now - kStart) / 2 + milliseconds(62));
  EXPECT_GE(slept, (now - kStart) / 3);
}

TEST(WaitBudget, EndedDestinationsDoNotReduceTheBudgetOfNewOnes) {
  WaitBudget budget;
  Instant now = kStart;
  for (uint64_t destination = 1; destination <= 3 * WaitBudget::kMaxDestinations; ++destination) {
    EXPECT_EQ(wait_for(budget, destination, now).waits, WaitBudget::kWaitsPerDestination);
    EXPECT_EQ(wait_for(budget, destination, now).waits, 0);
    now = now + seconds(1);
  }
}

}  // namespace
}  // namespace verbena::host
