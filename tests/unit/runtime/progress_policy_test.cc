// The progress owner, deferred transmits, and the sleep of the background thread: each rule with
// scripted times.
#include "runtime/progress_policy.h"

#include <gtest/gtest.h>

#include "tests/unit/core/turn_result_support.h"

namespace verbena::runtime {
namespace {

constexpr Instant at_us(int64_t us) { return Instant{} + microseconds(us); }
constexpr Instant kBegin = at_us(1'000'000);

class ProgressPolicyTest : public testing::Test {
 protected:
  // One poll that found nothing. True: the background thread is to be woken.
  bool poll(Instant at, bool has_more = false, Instant thread_sleeps_until = kNever) {
    if (policy_.begin_poll()) policy_.give_progress_to_poller();
    return policy_.end_poll(at, has_more, thread_sleeps_until);
  }
  // The number of polls until the application owns progress.
  int polls_until_owner(int most = 100) {
    for (int polls = 1; polls <= most; ++polls) {
      poll(kBegin);
      if (!policy_.thread_owns_progress()) return polls;
    }
    return 0;
  }
  void make_poller_owner() { ASSERT_NE(polls_until_owner(), 0); }
  // Packets wake the sleeping thread, which makes progress. True: the thread took over.
  bool wake_up(Instant at, bool polled_just_before, bool found = true) {
    policy_.sleep_until(at, kNever, 0);
    policy_.begin_work();
    if (!policy_.end_round(true, polled_just_before, found)) return false;
    policy_.give_progress_to_thread();
    return true;
  }
  // An owner that stopped polling while packets waited.
  void lose_poller() {
    make_poller_owner();
    ASSERT_TRUE(wake_up(kBegin + milliseconds(2), false));
  }
  int wakeups_until_owner(bool polled_just_before) {
    int wakeups = 0;
    while (polls_until_owner() == 0) {
      wake_up(kBegin, polled_just_before);
      if (++wakeups > 5000) break;
    }
    return wakeups;
  }
  // The thread falls asleep with an ACK delayed; a reply follows or not.
  void delay_ack(Instant since, bool reply_follows) {
    policy_.deferred(Defer::UntilReply, since);
    const Instant until = policy_.sleep_until(since, kNever, 0);
    if (reply_follows) policy_.transmitted();
    EXPECT_FALSE(policy_.leaves_ack_delayed(until, false, kNever));
    policy_.transmitted();
    policy_.begin_work();
  }
  Duration ack_delay() {
    policy_.deferred(Defer::UntilReply, kBegin);
    const Instant until = policy_.sleep_until(kBegin, kNever, 0);
    policy_.transmitted();
    return until - kBegin;
  }

  ProgressPolicy policy_;
};

// ----------------------------------------------------------------------------- progress owner

TEST_F(ProgressPolicyTest, TheBackgroundThreadOwnsProgressAtFirst) {
  EXPECT_TRUE(policy_.thread_owns_progress());
}

TEST_F(ProgressPolicyTest, ASteadyPollerBecomesTheOwner) { EXPECT_EQ(polls_until_owner(), 16); }

TEST_F(ProgressPolicyTest, PollsBeforeTheThreadTookOverDoNotCount) {
  for (int i = 0; i < 15; ++i) poll(kBegin);
  policy_.give_progress_to_thread();
  EXPECT_EQ(polls_until_owner(), 16);
}

TEST_F(ProgressPolicyTest, TheThreadTakesOverWhenPacketsWaitAndNothingPolls) {
  make_poller_owner();
  EXPECT_TRUE(wake_up(kBegin + milliseconds(2), false));
  EXPECT_TRUE(policy_.thread_owns_progress());
}

TEST_F(ProgressPolicyTest, APollerThatStoppedBecomesOwnerAgainAfter64WakeUps) {
  lose_poller();
  EXPECT_EQ(wakeups_until_owner(false), 64);
}

TEST_F(ProgressPolicyTest, EachFailureDoublesThePause) {
  lose_poller();
  EXPECT_EQ(wakeups_until_owner(false), 64);
  EXPECT_TRUE(wake_up(kBegin + milliseconds(2), false));
  EXPECT_EQ(wakeups_until_owner(false), 128);
}

TEST_F(ProgressPolicyTest, AThousandPassedChecksResetThePause) {
  lose_poller();
  EXPECT_EQ(wakeups_until_owner(false), 64);
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(policy_.may_sleep_on(kBegin));
  EXPECT_TRUE(wake_up(kBegin + milliseconds(2), false));
  EXPECT_EQ(wakeups_until_owner(false), 64);
}

TEST_F(ProgressPolicyTest, APollerThatStoppedWithoutWaitingPacketsIsNotPaused) {
  make_poller_owner();
  EXPECT_TRUE(wake_up(kBegin + milliseconds(2), false, false));
  EXPECT_EQ(polls_until_owner(), 16);
}

TEST_F(ProgressPolicyTest, SixteenWakeUpsJustAfterAPollEndThePause) {
  lose_poller();
  EXPECT_EQ(wakeups_until_owner(true), 16);
}

TEST_F(ProgressPolicyTest, AWakeUpWithoutARecentPollCancelsTwoWithOne) {
  lose_poller();
  for (int i = 0; i < 15; ++i) wake_up(kBegin, true);
  wake_up(kBegin, false);
  EXPECT_EQ(polls_until_owner(), 0);
  EXPECT_EQ(wakeups_until_owner(true), 3);
}

TEST_F(ProgressPolicyTest, ADelayedAckOfAPollCountsAsARecentPoll) {
  lose_poller();
  for (int i = 0; i < 16; ++i) {
    policy_.deferred(Defer::UntilReply, kBegin);
    policy_.end_poll(kBegin, false, kNever);
  }
  policy_.transmitted();
  EXPECT_NE(polls_until_owner(), 0);
}

TEST_F(ProgressPolicyTest, PolledJustBeforeMeansWithinFiveMicroseconds) {
  poll(kBegin);
  EXPECT_TRUE(policy_.polled_just_before(kBegin + microseconds(4)));
  EXPECT_FALSE(policy_.polled_just_before(kBegin + microseconds(5)));
}

// --------------------------------------------------------------- how long the thread sleeps

TEST_F(ProgressPolicyTest, AnIdleThreadSleepsWithoutALimit) {
  EXPECT_EQ(policy_.sleep_until(kBegin, kNever, 0), kNever);
}

TEST_F(ProgressPolicyTest, TheThreadSleepsUntilTheNextDeadline) {
  EXPECT_EQ(policy_.sleep_until(kBegin, kBegin + milliseconds(7), 0), kBegin + milliseconds(7));
}

TEST_F(ProgressPolicyTest, TheThreadChecksAPollerEveryMillisecond) {
  make_poller_owner();
  EXPECT_EQ(policy_.sleep_until(kBegin, kNever, 0), kBegin + milliseconds(1));
}

TEST_F(ProgressPolicyTest, AfterTrafficTheThreadSleepsForFiftyMillisecondsAtMost) {
  EXPECT_EQ(policy_.sleep_until(kBegin, kNever, 10), kBegin + milliseconds(50));
  EXPECT_EQ(policy_.sleep_until(kBegin, kNever, 10), kNever);
}

TEST_F(ProgressPolicyTest, TheThreadSleepsOnWhileTheOwnerPolls) {
  make_poller_owner();
  EXPECT_TRUE(policy_.may_sleep_on(kBegin + microseconds(99)));
  EXPECT_FALSE(policy_.may_sleep_on(kBegin + microseconds(100)));
}

TEST_F(ProgressPolicyTest, ATimeoutEndsTheSleepOfTheThreadThatOwnsProgress) {
  poll(kBegin);
  EXPECT_FALSE(policy_.may_sleep_on(kBegin));
}

// ------------------------------------------------------------------------------- missed polls

TEST_F(ProgressPolicyTest, PacketsAreLeftToAnOwnerThatPolls) {
  make_poller_owner();
  EXPECT_TRUE(policy_.leaves_packets_to_poller(kBegin + microseconds(50)));
}

TEST_F(ProgressPolicyTest, TheThreadHandlesPacketsIfItOwnsProgress) {
  poll(kBegin);
  EXPECT_FALSE(policy_.leaves_packets_to_poller(kBegin));
}

TEST_F(ProgressPolicyTest, AMissedPollGetsASecondCheckAfterFiftyMicroseconds) {
  make_poller_owner();
  const Instant late = kBegin + milliseconds(1);
  EXPECT_TRUE(policy_.leaves_packets_to_poller(late));
  EXPECT_EQ(policy_.sleep_until(late, kNever, 0), late + microseconds(50));
  EXPECT_FALSE(policy_.leaves_packets_to_poller(late + microseconds(50)));
}

TEST_F(ProgressPolicyTest, APollBeforeTheSecondCheckClearsTheMissedPoll) {
  make_poller_owner();
  const Instant late = kBegin + milliseconds(1);
  EXPECT_TRUE(policy_.leaves_packets_to_poller(late));
  poll(late + microseconds(20));
  EXPECT_TRUE(policy_.leaves_packets_to_poller(late + microseconds(50)));
  EXPECT_EQ(policy_.sleep_until(late, kNever, 0), late + milliseconds(1));
}

// ------------------------------------------------------------------------ deferred transmits

// The rule itself, AckScheduler::may_defer, is tested in core/ack_scheduler_test.cc.

TEST_F(ProgressPolicyTest, ASteadyPollerDefersUntilItsNextPoll) {
  make_poller_owner();
  EXPECT_EQ(policy_.deferral_for_poll(), Defer::UntilPoll);
}

TEST_F(ProgressPolicyTest, TheBackgroundThreadAsOwnerDelaysAcksUntilAReply) {
  EXPECT_EQ(policy_.deferral_for_poll(), Defer::UntilReply);
  EXPECT_EQ(policy_.deferral_for_thread(), Defer::UntilReply);
}

TEST_F(ProgressPolicyTest, OnlyADeferralUntilAReplyIsADelayedAck) {
  EXPECT_FALSE(policy_.has_deferred());
  policy_.deferred(Defer::UntilPoll, kBegin);
  EXPECT_TRUE(policy_.has_deferred());
  EXPECT_FALSE(policy_.has_delayed_ack());
  policy_.deferred(Defer::UntilReply, kBegin);
  EXPECT_TRUE(policy_.has_delayed_ack());
  policy_.transmitted();
  EXPECT_FALSE(policy_.has_deferred());
}

// ------------------------------------------------------------------------------- delayed ACKs

TEST_F(ProgressPolicyTest, AnAckIsDelayedForTwentyMicrosecondsAtFirst) {
  EXPECT_EQ(ack_delay(), microseconds(20));
}

TEST_F(ProgressPolicyTest, FourRepliesInARowMakeTheDelayLonger) {
  for (int i = 0; i < 3; ++i) delay_ack(kBegin, true);
  EXPECT_EQ(ack_delay(), microseconds(20));
  delay_ack(kBegin, true);
  EXPECT_EQ(ack_delay(), microseconds(500));
}

TEST_F(ProgressPolicyTest, AMissingReplyMakesTheDelayShortAgain) {
  for (int i = 0; i < 4; ++i) delay_ack(kBegin, true);
  delay_ack(kBegin, false);
  EXPECT_EQ(ack_delay(), microseconds(20));
}

TEST_F(ProgressPolicyTest, AMissingReplyStopsDelayedAcksFor128WakeUps) {
  delay_ack(kBegin, false);
  int wakeups = 1;  // the wake-up of the missing reply
  while (policy_.deferral_for_thread() == Defer::Nothing && wakeups < 1000) {
    policy_.begin_work();
    ++wakeups;
  }
  EXPECT_EQ(wakeups, 128);
}

TEST_F(ProgressPolicyTest, TheThreadLeavesAnAckDelayedThatAPollJustDelayed) {
  policy_.sleep_until(kBegin, kNever, 0);
  policy_.deferred(Defer::UntilReply, kBegin + microseconds(10));
  EXPECT_TRUE(policy_.leaves_ack_delayed(kBegin + microseconds(15), false, kNever));
}

TEST_F(ProgressPolicyTest, TheThreadSendsADelayedAckWhoseTimeIsUp) {
  policy_.sleep_until(kBegin, kNever, 0);
  policy_.deferred(Defer::UntilReply, kBegin);
  EXPECT_FALSE(policy_.leaves_ack_delayed(kBegin + microseconds(20), false, kNever));
}

TEST_F(ProgressPolicyTest, TheThreadSendsADelayedAckWhenADeadlineHasPassed) {
  policy_.sleep_until(kBegin, kNever, 0);
  policy_.deferred(Defer::UntilReply, kBegin);
  const Instant woke = kBegin + microseconds(5);
  EXPECT_FALSE(policy_.leaves_ack_delayed(woke, false, woke));
}

TEST_F(ProgressPolicyTest, TheThreadSendsADelayedAckWhenFurtherPacketsWokeIt) {
  policy_.sleep_until(kBegin, kNever, 0);
  policy_.deferred(Defer::UntilReply, kBegin);
  EXPECT_FALSE(policy_.leaves_ack_delayed(kBegin + microseconds(5), true, kNever));
}

TEST_F(ProgressPolicyTest, APollWakesAThreadThatWouldSleepThroughTheDelayedAck) {
  policy_.deferred(Defer::UntilReply, kBegin);
  EXPECT_TRUE(policy_.end_poll(kBegin, false, kBegin + microseconds(21)));
  EXPECT_FALSE(policy_.end_poll(kBegin, false, kBegin + microseconds(20)));
}

TEST_F(ProgressPolicyTest, APollWakesTheThreadForPacketsThatItLeavesUnread) {
  EXPECT_TRUE(poll(kBegin, true));
  EXPECT_FALSE(poll(kBegin, false));
  make_poller_owner();
  EXPECT_FALSE(poll(kBegin, true));
}

// ------------------------------------------------------------- a post that waits for a response

TEST_F(ProgressPolicyTest, APostWaitsForAResponseOnlyAfterAOneSidedWrite) {
  EXPECT_FALSE(policy_.begin_post());
  EXPECT_FALSE(policy_.end_post(false, false));
  EXPECT_FALSE(policy_.begin_post());
  EXPECT_FALSE(policy_.end_post(true, false));  // the first one was not announced
  EXPECT_TRUE(policy_.begin_post());
  EXPECT_TRUE(policy_.end_post(true, true));
}

TEST_F(ProgressPolicyTest, APollerWaitsForAResponseAtOnce) {
  make_poller_owner();
  EXPECT_FALSE(policy_.begin_post());  // a poller is never announced: the peer sees it awake
  EXPECT_TRUE(policy_.end_post(true, false));
}

TEST_F(ProgressPolicyTest, APostThatWaitsDefersWithoutACompletion) {
  make_poller_owner();
  EXPECT_FALSE(policy_.may_defer(Defer::UntilPoll, core::kTurnWithWrite));
  EXPECT_TRUE(policy_.end_post(true, false));
  EXPECT_TRUE(policy_.may_defer(Defer::UntilPoll, core::kTurnWithWrite));
  policy_.end_response_wait(true);
  EXPECT_FALSE(policy_.may_defer(Defer::UntilPoll, core::kTurnWithWrite));
}

TEST_F(ProgressPolicyTest, AMissingResponseStopsTheWaitFor16Posts) {
  make_poller_owner();
  EXPECT_TRUE(policy_.end_post(true, false));
  policy_.end_response_wait(false);
  for (int i = 0; i < 16; ++i) EXPECT_FALSE(policy_.end_post(true, false));
  EXPECT_TRUE(policy_.end_post(true, false));
}

// ---------------------------------------------------------------------------------- busy polls

TEST_F(ProgressPolicyTest, TheThreadBusyPollsAfterABurstOnly) {
  policy_.begin_turns();
  EXPECT_FALSE(policy_.may_busy_poll(7, microseconds(1)));
  EXPECT_TRUE(policy_.may_busy_poll(8, microseconds(1)));
}

TEST_F(ProgressPolicyTest, TheThreadDoesNotBusyPollBesideAPoller) {
  make_poller_owner();
  policy_.begin_turns();
  EXPECT_FALSE(policy_.may_busy_poll(8, microseconds(1)));
}

}  // namespace
}  // namespace verbena::runtime
