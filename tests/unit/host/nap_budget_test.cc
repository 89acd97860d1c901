// How long a sender waits for full destinations. Time is explicit.
#include "host/nap_budget.h"

#include <gtest/gtest.h>

namespace verbena::host {
namespace {

constexpr Instant kStart{seconds(5).ns};

struct Waited {
  int naps = 0;
  Duration in_all{};
};

// The waits of a sender for a destination that stays full.
Waited wait_for(NapBudget& budget, uint64_t destination, Instant now) {
  Waited waited;
  while (waited.naps < 1000) {
    const auto nap = budget.next_nap(destination, now + waited.in_all);
    if (!nap) break;
    ++waited.naps;
    waited.in_all = waited.in_all + *nap;
  }
  return waited;
}

TEST(NapBudget, AStoppedDestinationUsesItsBudgetOnce) {
  NapBudget budget;
  const Waited first = wait_for(budget, 1, kStart);
  EXPECT_EQ(first.naps, NapBudget::kNapsPerDestination);
  EXPECT_EQ(first.in_all, microseconds(20'500));
  EXPECT_EQ(wait_for(budget, 1, kStart + seconds(1000)).naps, 0);
}

TEST(NapBudget, EachDestinationHasItsOwnBudget) {
  NapBudget budget;
  wait_for(budget, 1, kStart);
  EXPECT_EQ(wait_for(budget, 2, kStart).naps, NapBudget::kNapsPerDestination);
  // A destination that takes messages does not restore the budget of a stopped one.
  budget.got_through(2);
  EXPECT_EQ(wait_for(budget, 1, kStart + seconds(1)).naps, 0);
  EXPECT_EQ(wait_for(budget, 2, kStart + seconds(1)).naps, NapBudget::kNapsPerDestination);
}

TEST(NapBudget, RestoresTheBudgetOfADestinationThatTakesMessagesAgain) {
  NapBudget budget;
  wait_for(budget, 1, kStart);
  budget.got_through(1);
  EXPECT_EQ(wait_for(budget, 1, kStart + seconds(1)).naps, NapBudget::kNapsPerDestination);
}

TEST(NapBudget, AllWaitsTakeAtMostHalfOfTheTime) {
  NapBudget budget;
  Instant now = kStart;
  Duration slept{};
  while (now - kStart < seconds(2)) {  // each destination takes one message now and then
    for (uint64_t destination = 1; destination <= 20; ++destination) {
      budget.got_through(destination);
      const Waited waited = wait_for(budget, destination, now);
      now = now + waited.in_all + microseconds(10);
      slept = slept + waited.in_all;
    }
  }
  EXPECT_LE(slept, (now - kStart) / 2 + milliseconds(62));
  EXPECT_GE(slept, (now - kStart) / 3);
}

TEST(NapBudget, EndedDestinationsDoNotReduceTheBudgetOfNewOnes) {
  NapBudget budget;
  Instant now = kStart;
  for (uint64_t destination = 1; destination <= 3 * NapBudget::kMostDestinations; ++destination) {
    EXPECT_EQ(wait_for(budget, destination, now).naps, NapBudget::kNapsPerDestination);
    EXPECT_EQ(wait_for(budget, destination, now).naps, 0);
    now = now + seconds(1);
  }
}

}  // namespace
}  // namespace verbena::host
