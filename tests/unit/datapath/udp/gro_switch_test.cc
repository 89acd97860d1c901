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

void switch_off(GroSwitch& gro) {
  ASSERT_NE(until_change(gro, Change::DisableGro), 0u);
  for (uint32_t i = 0; i < kStreak; ++i) {
    gro.after_read(0, 0);
    ASSERT_FALSE(gro.is_drained());
    ASSERT_EQ(gro.after_read(1, 1), Change::None);
  }
  gro.after_read(0, 0);
  ASSERT_TRUE(gro.is_drained());
}

TEST(GroSwitch, OneStreakDisablesGroAndAnotherCompletesTheSwitch) {
  GroSwitch gro;
  EXPECT_EQ(until_change(gro, Change::DisableGro), kStreak);
  EXPECT_TRUE(gro.is_disabled());
  EXPECT_FALSE(gro.is_drained());  // a batch may still be in the socket or in the kernel
  GroSwitch another;
  switch_off(another);
  EXPECT_EQ(until_change(another, Change::EnableGro), 0u);  // while single datagrams are received
}

TEST(GroSwitch, SleepingReturnsToBatchesWithoutALongerStreak) {
  GroSwitch gro;
  for (uint32_t i = 1; i < kStreak; ++i) gro.after_read(1, 1);
  EXPECT_EQ(gro.prepare_to_sleep(), Change::None);
  EXPECT_EQ(until_change(gro, Change::DisableGro), kStreak);
  EXPECT_EQ(gro.prepare_to_sleep(), Change::EnableGro);
  EXPECT_FALSE(gro.is_disabled());
  switch_off(gro);
  EXPECT_EQ(gro.prepare_to_sleep(), Change::EnableGro);
  EXPECT_EQ(until_change(gro, Change::DisableGro), kStreak);
}

TEST(GroSwitch, StaysOffWhileSingleDatagramsAreReceived) {
  GroSwitch gro;
  switch_off(gro);
  EXPECT_EQ(until_change(gro, Change::EnableGro), 0u);
}

TEST(GroSwitch, ABatchOrSeveralDatagramsEndAStreak) {
  GroSwitch gro;
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t i = 1; i < kStreak; ++i) EXPECT_EQ(gro.after_read(1, 1), Change::None);
    EXPECT_EQ(round % 2 == 0 ? gro.after_read(1, 2) : gro.after_read(2, 2), Change::None);
  }
  EXPECT_FALSE(gro.is_disabled());
}

TEST(GroSwitch, ABatchDuringTheSwitchReturnsToBatchesAtOnce) {
  GroSwitch gro;
  ASSERT_EQ(until_change(gro, Change::DisableGro), kStreak);
  EXPECT_EQ(gro.after_read(1, 16), Change::EnableGro);
  EXPECT_FALSE(gro.is_disabled());
}

TEST(GroSwitch, DatagramsInQuickSuccessionReturnToBatchesAndDoubleTheStreak) {
  GroSwitch gro;
  for (uint32_t wanted = 2 * kStreak; wanted <= GroSwitch::kLongestStreak; wanted *= 2) {
    switch_off(gro);
    for (uint32_t i = 1; i < GroSwitch::kCloseTogether; ++i) {
      EXPECT_EQ(gro.after_read(1, 1), Change::None);
    }
    EXPECT_EQ(gro.after_read(1, 1), Change::EnableGro);
    EXPECT_FALSE(gro.is_disabled());
    GroSwitch copy = gro;
    EXPECT_EQ(until_change(copy, Change::DisableGro), wanted);
  }
}

TEST(GroSwitch, SuccessResetsTheStreak) {
  GroSwitch gro;
  switch_off(gro);
  for (uint32_t i = 0; i < GroSwitch::kCloseTogether; ++i) gro.after_read(1, 1);
  switch_off(gro);
  for (uint32_t i = 0; i < 2 * kStreak; ++i) {
    gro.after_read(0, 0);
    EXPECT_EQ(gro.after_read(1, 1), Change::None);
  }
  gro.after_read(0, 0);
  for (uint32_t i = 0; i < GroSwitch::kCloseTogether; ++i) gro.after_read(1, 1);
  EXPECT_EQ(until_change(gro, Change::DisableGro), 2 * kStreak);
}

TEST(GroSwitch, NeverSwitchesAfterBeingEnabledPermanently) {
  GroSwitch gro;
  EXPECT_EQ(gro.enable_permanently(), Change::None);
  EXPECT_EQ(until_change(gro, Change::DisableGro), 0u);
  GroSwitch switched;
  switch_off(switched);
  EXPECT_EQ(switched.enable_permanently(), Change::EnableGro);
  EXPECT_EQ(until_change(switched, Change::DisableGro), 0u);
}

}  // namespace
}  // namespace verbena::datapath
