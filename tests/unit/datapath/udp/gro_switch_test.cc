// When a socket is read for single datagrams, and when for GRO batches.
#include "datapath/udp/gro_switch.h"

#include <gtest/gtest.h>

namespace verbena::datapath {
namespace {

using Change = GroSwitch::Change;
constexpr uint32_t kStreak = GroSwitch::kStreak;

// Single datagrams, each after an empty read; returns how many until the mode changes.
uint32_t until_change(GroSwitch& gro, Change wanted) {
  for (uint32_t n = 1; n <= 4 * GroSwitch::kLongestStreak; ++n) {
    EXPECT_EQ(gro.after_read(0, 0), Change::None);
    const Change change = gro.after_read(1, 1);
    if (change == Change::None) continue;
    EXPECT_EQ(change, wanted);
    return n;
  }
  return 0;
}

void begin(GroSwitch& gro) {
  ASSERT_NE(until_change(gro, Change::ToDatagrams), 0u);
  for (uint32_t i = 0; i < kStreak; ++i) {
    gro.after_read(0, 0);
    ASSERT_FALSE(gro.alone());
    ASSERT_EQ(gro.after_read(1, 1), Change::None);
  }
  gro.after_read(0, 0);
  ASSERT_TRUE(gro.alone());
}

TEST(GroSwitch, AStreakStartsTheSwitchAndAnotherCompletesIt) {
  GroSwitch gro;
  EXPECT_EQ(until_change(gro, Change::ToDatagrams), kStreak);
  EXPECT_TRUE(gro.begun());
  EXPECT_FALSE(gro.alone());  // a batch may still be in the socket or in the kernel
  GroSwitch another;
  begin(another);
  EXPECT_EQ(until_change(another, Change::ToTrains),
            0u);  // while datagrams are received one at a time
}

TEST(GroSwitch, SleepingReturnsToBatchesWithoutALongerStreak) {
  GroSwitch gro;
  for (uint32_t i = 1; i < kStreak; ++i) gro.after_read(1, 1);
  EXPECT_EQ(gro.rest(), Change::None);
  EXPECT_EQ(until_change(gro, Change::ToDatagrams), kStreak);
  EXPECT_EQ(gro.rest(), Change::ToTrains);
  EXPECT_FALSE(gro.begun());
  begin(gro);
  EXPECT_EQ(gro.rest(), Change::ToTrains);
  EXPECT_EQ(until_change(gro, Change::ToDatagrams), kStreak);
}

TEST(GroSwitch, StaysWhileDatagramsAreReceivedOneAtATime) {
  GroSwitch gro;
  begin(gro);
  EXPECT_EQ(until_change(gro, Change::ToTrains), 0u);
}

TEST(GroSwitch, ABatchOrSeveralDatagramsEndAStreak) {
  GroSwitch gro;
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t i = 1; i < kStreak; ++i) EXPECT_EQ(gro.after_read(1, 1), Change::None);
    EXPECT_EQ(round % 2 == 0 ? gro.after_read(1, 2) : gro.after_read(2, 2), Change::None);
  }
  EXPECT_FALSE(gro.begun());
}

TEST(GroSwitch, ABatchDuringTheSwitchReturnsToBatchesAtOnce) {
  GroSwitch gro;
  ASSERT_EQ(until_change(gro, Change::ToDatagrams), kStreak);
  EXPECT_EQ(gro.after_read(1, 16), Change::ToTrains);
  EXPECT_FALSE(gro.begun());
}

TEST(GroSwitch, DatagramsInQuickSuccessionReturnToBatchesAndDoubleTheStreak) {
  GroSwitch gro;
  for (uint32_t wanted = 2 * kStreak; wanted <= GroSwitch::kLongestStreak; wanted *= 2) {
    begin(gro);
    for (uint32_t i = 1; i < GroSwitch::kCloseTogether; ++i) {
      EXPECT_EQ(gro.after_read(1, 1), Change::None);
    }
    EXPECT_EQ(gro.after_read(1, 1), Change::ToTrains);
    EXPECT_FALSE(gro.begun());
    GroSwitch copy = gro;
    EXPECT_EQ(until_change(copy, Change::ToDatagrams), wanted);
  }
}

TEST(GroSwitch, SuccessResetsTheStreak) {
  GroSwitch gro;
  begin(gro);
  for (uint32_t i = 0; i < GroSwitch::kCloseTogether; ++i) gro.after_read(1, 1);
  begin(gro);
  for (uint32_t i = 0; i < 2 * kStreak; ++i) {
    gro.after_read(0, 0);
    EXPECT_EQ(gro.after_read(1, 1), Change::None);
  }
  gro.after_read(0, 0);
  for (uint32_t i = 0; i < GroSwitch::kCloseTogether; ++i) gro.after_read(1, 1);
  EXPECT_EQ(until_change(gro, Change::ToDatagrams), 2 * kStreak);
}

TEST(GroSwitch, NeverSwitchesAfterGivingUp) {
  GroSwitch gro;
  EXPECT_EQ(gro.give_up(), Change::None);
  EXPECT_EQ(until_change(gro, Change::ToDatagrams), 0u);
  GroSwitch begun;
  begin(begun);
  EXPECT_EQ(begun.give_up(), Change::ToTrains);
  EXPECT_EQ(until_change(begun, Change::ToDatagrams), 0u);
}

}  // namespace
}  // namespace verbena::datapath
