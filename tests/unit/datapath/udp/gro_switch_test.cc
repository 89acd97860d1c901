// When a socket is read for single datagrams, and when for GRO batches.
#include "datapath/udp/gro_switch.h"

#include <gtest/gtest.h>

namespace verbena::datapath {
namespace {

using Change = GroSwitch::Change;
constexpr uint32_t kStreak = GroSwitch::kStreak;

// Single datagrams, each after an empty read; returns how many until the mode changes.
uint32_t until_change(GroSwitch& lone, Change wanted) {
  for (uint32_t n = 1; n <= 4 * GroSwitch::kLongestStreak; ++n) {
    EXPECT_EQ(lone.after_read(0, 0), Change::None);
    const Change change = lone.after_read(1, 1);
    if (change == Change::None) continue;
    EXPECT_EQ(change, wanted);
    return n;
  }
  return 0;
}

void begin(GroSwitch& lone) {
  ASSERT_NE(until_change(lone, Change::ToDatagrams), 0u);
  for (uint32_t i = 0; i < kStreak; ++i) {
    lone.after_read(0, 0);
    ASSERT_FALSE(lone.alone());
    ASSERT_EQ(lone.after_read(1, 1), Change::None);
  }
  lone.after_read(0, 0);
  ASSERT_TRUE(lone.alone());
}

TEST(GroSwitch, AStreakStartsTheSwitchAndAnotherCompletesIt) {
  GroSwitch lone;
  EXPECT_EQ(until_change(lone, Change::ToDatagrams), kStreak);
  EXPECT_TRUE(lone.begun());
  EXPECT_FALSE(lone.alone());  // a batch may still be in the socket or in the kernel
  GroSwitch another;
  begin(another);
  EXPECT_EQ(until_change(another, Change::ToTrains), 0u);  // while datagrams come one at a time
}

TEST(GroSwitch, SleepingReturnsToBatchesWithoutALongerStreak) {
  GroSwitch lone;
  for (uint32_t i = 1; i < kStreak; ++i) lone.after_read(1, 1);
  EXPECT_EQ(lone.rest(), Change::None);
  EXPECT_EQ(until_change(lone, Change::ToDatagrams), kStreak);
  EXPECT_EQ(lone.rest(), Change::ToTrains);
  EXPECT_FALSE(lone.begun());
  begin(lone);
  EXPECT_EQ(lone.rest(), Change::ToTrains);
  EXPECT_EQ(until_change(lone, Change::ToDatagrams), kStreak);
}

TEST(GroSwitch, StaysWhileDatagramsComeOneAtATime) {
  GroSwitch lone;
  begin(lone);
  EXPECT_EQ(until_change(lone, Change::ToTrains), 0u);
}

TEST(GroSwitch, ABatchOrSeveralDatagramsEndAStreak) {
  GroSwitch lone;
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t i = 1; i < kStreak; ++i) EXPECT_EQ(lone.after_read(1, 1), Change::None);
    EXPECT_EQ(round % 2 == 0 ? lone.after_read(1, 2) : lone.after_read(2, 2), Change::None);
  }
  EXPECT_FALSE(lone.begun());
}

TEST(GroSwitch, ABatchDuringTheSwitchReturnsToBatchesAtOnce) {
  GroSwitch lone;
  ASSERT_EQ(until_change(lone, Change::ToDatagrams), kStreak);
  EXPECT_EQ(lone.after_read(1, 16), Change::ToTrains);
  EXPECT_FALSE(lone.begun());
}

TEST(GroSwitch, DatagramsInQuickSuccessionReturnToBatchesAndDoubleTheStreak) {
  GroSwitch lone;
  for (uint32_t wanted = 2 * kStreak; wanted <= GroSwitch::kLongestStreak; wanted *= 2) {
    begin(lone);
    for (uint32_t i = 1; i < GroSwitch::kCloseTogether; ++i) {
      EXPECT_EQ(lone.after_read(1, 1), Change::None);
    }
    EXPECT_EQ(lone.after_read(1, 1), Change::ToTrains);
    EXPECT_FALSE(lone.begun());
    GroSwitch copy = lone;
    EXPECT_EQ(until_change(copy, Change::ToDatagrams), wanted);
  }
}

TEST(GroSwitch, SuccessResetsTheStreak) {
  GroSwitch lone;
  begin(lone);
  for (uint32_t i = 0; i < GroSwitch::kCloseTogether; ++i) lone.after_read(1, 1);
  begin(lone);
  for (uint32_t i = 0; i < 2 * kStreak; ++i) {
    lone.after_read(0, 0);
    EXPECT_EQ(lone.after_read(1, 1), Change::None);
  }
  lone.after_read(0, 0);
  for (uint32_t i = 0; i < GroSwitch::kCloseTogether; ++i) lone.after_read(1, 1);
  EXPECT_EQ(until_change(lone, Change::ToDatagrams), 2 * kStreak);
}

TEST(GroSwitch, NeverSwitchesAfterGivingUp) {
  GroSwitch lone;
  EXPECT_EQ(lone.give_up(), Change::None);
  EXPECT_EQ(until_change(lone, Change::ToDatagrams), 0u);
  GroSwitch begun;
  begin(begun);
  EXPECT_EQ(begun.give_up(), Change::ToTrains);
  EXPECT_EQ(until_change(begun, Change::ToDatagrams), 0u);
}

}  // namespace
}  // namespace verbena::datapath
