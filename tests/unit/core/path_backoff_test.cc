// The back-off from a full path.
#include "core/path_backoff.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

constexpr Instant kStart = Instant{} + seconds(1);

// The length of the next wait.
Duration next_wait(PathBackoff& backoff, Instant now) {
  backoff.on_full(now);
  backoff.wait(now);
  return backoff.until() - now;
}

TEST(PathBackoff, DoesNotWaitAtFirst) {
  const PathBackoff backoff;
  EXPECT_FALSE(backoff.is_full());
  EXPECT_FALSE(backoff.is_waiting());
  EXPECT_EQ(backoff.until(), kNever);
}

TEST(PathBackoff, DoublesTheWaitUpToALimit) {
  PathBackoff backoff;
  EXPECT_EQ(next_wait(backoff, kStart), PathBackoff::kFirstWait);
  EXPECT_EQ(next_wait(backoff, kStart), PathBackoff::kFirstWait * 2);
  for (int i = 0; i < 20; ++i) next_wait(backoff, kStart);
  EXPECT_EQ(next_wait(backoff, kStart), PathBackoff::kMaxWait);
}

TEST(PathBackoff, StaysFullAfterAWaitUntilThereIsRoom) {
  PathBackoff backoff;
  next_wait(backoff, kStart);
  backoff.end_wait();
  EXPECT_FALSE(backoff.is_waiting());
  EXPECT_TRUE(backoff.is_full());
  backoff.on_room();
  EXPECT_FALSE(backoff.is_full());
  EXPECT_EQ(next_wait(backoff, kStart), PathBackoff::kFirstWait);
}

TEST(PathBackoff, MeasuresForHowLongThePathIsFull) {
  PathBackoff backoff;
  EXPECT_EQ(backoff.on_full(kStart), Duration{});
  EXPECT_EQ(backoff.on_full(kStart + milliseconds(3)), milliseconds(3));
  backoff.on_room();
  EXPECT_EQ(backoff.on_full(kStart + milliseconds(4)), Duration{});
}

}  // namespace
}  // namespace verbena::core
