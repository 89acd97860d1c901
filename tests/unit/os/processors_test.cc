// Processors by affinity, and the quota of a cgroup.
#include "os/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

namespace verbena::os {
namespace {

TEST(CpuQuota, IsRoundedUpToWholeProcessors) {
  EXPECT_EQ(parse_cpu_quota("200000 100000\n"), 2u);
  EXPECT_EQ(parse_cpu_quota("200001 100000\n"), 3u);
  EXPECT_EQ(parse_cpu_quota("199999 100000\n"), 2u);
  EXPECT_EQ(parse_cpu_quota("1600000 50000"), 32u);
}

TEST(CpuQuota, IsAtLeastOneProcessor) {
  EXPECT_EQ(parse_cpu_quota("1000 100000\n"), 1u);
  EXPECT_EQ(parse_cpu_quota("0 100000\n"), 1u);
}

TEST(CpuQuota, OfTheLargestNumberIsNoTightLimit) {
  EXPECT_EQ(parse_cpu_quota("18446744073709551615 100000\n"), 184467440737096u);
}

TEST(CpuQuota, IsAbsentWithoutALimit) { EXPECT_EQ(parse_cpu_quota("max 100000\n"), std::nullopt); }

TEST(CpuQuota, IsAbsentInOtherText) {
  for (const char* text : {"", "\n", "100000", "100000 ", "100000 x", "-1 100000", "100000 0",
                           "99999999999999999999 100000"}) {
    EXPECT_EQ(parse_cpu_quota(text), std::nullopt) << text;
  }
}

TEST(UsableProcessors, FollowTheAffinityOfTheProcess) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_GE(usable_processors(), 1u);
  EXPECT_LE(usable_processors(), static_cast<size_t>(CPU_COUNT(&before)));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_processors(), 1u);
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace
}  // namespace verbena::os
