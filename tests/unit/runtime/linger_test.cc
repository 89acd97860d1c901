// Waiting awake for the next burst, as long as that comes.
#include "runtime/linger.h"

#include <gtest/gtest.h>

namespace verbena::runtime {
namespace {

// The turns after one burst, a microsecond each, until the next one comes or the thread sleeps.
int turns_awake(Linger& linger, int next_after_us) {
  linger.begin();
  linger.found();
  for (int us = 1;; ++us) {
    if (!linger.goes_on(microseconds(us))) return us;
    if (us == next_after_us) {
      linger.found();
      return us;
    }
  }
}

constexpr int kNever = -1;
constexpr int kLongest = 51;

TEST(Linger, WaitsForAWhileAndNotForEver) {
  Linger linger;
  EXPECT_EQ(turns_awake(linger, kNever), kLongest);
}

TEST(Linger, GoesOnWhereTheNextBurstComes) {
  Linger linger;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(turns_awake(linger, 40), 40);
}

// One core for both ends: the peer sends when this thread sleeps, never before.
TEST(Linger, IsGivenUpWhereTheNextBurstNeverComes) {
  Linger linger;
  int awake = 0;
  for (int i = 0; i < 1000; ++i) awake += turns_awake(linger, kNever) == kLongest;
  EXPECT_LT(awake, 20);
}

TEST(Linger, IsNotGivenUpBecauseStreamsEnd) {
  Linger linger;
  for (int i = 0; i < 100; ++i) {
    for (int end = 0; end < 7; ++end) EXPECT_EQ(turns_awake(linger, kNever), kLongest);
    EXPECT_EQ(turns_awake(linger, 10), 10);
  }
}

TEST(Linger, IsTriedAgainAndComesBack) {
  Linger linger;
  for (int i = 0; i < 100; ++i) turns_awake(linger, kNever);
  int bursts = 0;
  while (turns_awake(linger, 10) != 10) ++bursts;
  EXPECT_LT(bursts, 1000);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(turns_awake(linger, 10), 10);
}

}  // namespace
}  // namespace verbena::runtime
