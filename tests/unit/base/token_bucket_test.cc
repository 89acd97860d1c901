// Tokens of a bucket over explicit time.
#include "base/token_bucket.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

constexpr Instant kStart{seconds(5).ns};

int tokens_at(TokenBucket& bucket, Instant now) {
  int taken = 0;
  while (taken < 1000 && bucket.take(now)) ++taken;
  return taken;
}

TEST(TokenBucket, AllowsABurstAndThenNothing) {
  TokenBucket bucket(10, milliseconds(100));
  EXPECT_EQ(tokens_at(bucket, kStart), 10);
  EXPECT_EQ(tokens_at(bucket, kStart + milliseconds(99)), 0);
}

TEST(TokenBucket, RefillsOverTimeUpToTheBurst) {
  TokenBucket bucket(10, milliseconds(100));
  tokens_at(bucket, kStart);
  EXPECT_EQ(tokens_at(bucket, kStart + milliseconds(350)), 3);
  EXPECT_EQ(tokens_at(bucket, kStart + milliseconds(400)), 1);
  EXPECT_EQ(tokens_at(bucket, kStart + seconds(100)), 10);
}

TEST(TokenBucket, TakesAllRequestedTokensOrNone) {
  TokenBucket bucket(10, milliseconds(1));
  EXPECT_FALSE(bucket.take(kStart, 11));
  EXPECT_TRUE(bucket.take(kStart, 7));
  EXPECT_FALSE(bucket.take(kStart, 4));
  EXPECT_TRUE(bucket.take(kStart, 3));
}

}  // namespace
}  // namespace verbena
