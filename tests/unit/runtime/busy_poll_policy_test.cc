// Busy polls between bursts.
#include "runtime/busy_poll_policy.h"

#include <gtest/gtest.h>

namespace verbena::runtime {
namespace {

// The polls after one burst, one per microsecond, until the next burst or until the thread sleeps.
int polls_after_burst(BusyPollPolicy& policy, int next_after_us) {
  policy.begin();
  policy.found();
  for (int us = 1;; ++us) {
    if (!policy.goes_on(microseconds(us))) return us;
    if (us == next_after_us) {
      policy.found();
      return us;
    }
  }
}

constexpr int kNoOtherBurst = -1;
constexpr int kLongest = 51;

TEST(BusyPollPolicy, PollsForABoundedTime) {
  BusyPollPolicy policy;
  EXPECT_EQ(polls_after_burst(policy, kNoOtherBurst), kLongest);
}

TEST(BusyPollPolicy, PollsAfterEveryBurstWhileBurstsFollow) {
  BusyPollPolicy policy;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(polls_after_burst(policy, 40), 40);
}

// Both ends share one core: the peer sends only while this thread sleeps.
TEST(BusyPollPolicy, StopsPollingIfNoBurstFollows) {
  BusyPollPolicy policy;
  int full_polls = 0;
  for (int i = 0; i < 1000; ++i) full_polls += polls_after_burst(policy, kNoOtherBurst) == kLongest;
  EXPECT_LT(full_polls, 20);
}

TEST(BusyPollPolicy, KeepsPollingIfOneBurstInEightIsFollowedByAnother) {
  BusyPollPolicy policy;
  for (int i = 0; i < 100; ++i) {
    for (int end = 0; end < 7; ++end) EXPECT_EQ(polls_after_burst(policy, kNoOtherBurst), kLongest);
    EXPECT_EQ(polls_after_burst(policy, 10), 10);
  }
}

TEST(BusyPollPolicy, ResumesPollingWhenBurstsReturn) {
  BusyPollPolicy policy;
  for (int i = 0; i < 100; ++i) polls_after_burst(policy, kNoOtherBurst);
  int bursts = 0;
  while (polls_after_burst(policy, 10) != 10) ++bursts;
  EXPECT_LT(bursts, 1000);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(polls_after_burst(policy, 10), 10);
}

}  // namespace
}  // namespace verbena::runtime
