// Attempts become rarer with each failure.
#include "runtime/prediction.h"

#include <gtest/gtest.h>

namespace verbena::runtime {
namespace {

// The number of opportunities until the next attempt.
int pause_of(Prediction& prediction) {
  int pause = 0;
  while (!prediction.try_now()) ++pause;
  return pause;
}

TEST(Prediction, IsDueEveryTimeWhileItSucceeds) {
  Prediction prediction(16, 4096);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(prediction.try_now());
    prediction.succeeded();
  }
}

TEST(Prediction, PausesTwiceAsLongAfterEachFailureUpToALimit) {
  Prediction prediction(16, 4096);
  int last = 0;
  for (int i = 0; i < 8; ++i) {
    prediction.failed();
    const int pause = pause_of(prediction);
    EXPECT_EQ(pause, last == 0 ? 16 : 2 * last);
    last = pause;
  }
  for (int i = 0; i < 4; ++i) prediction.failed();
  EXPECT_EQ(pause_of(prediction), 4096);
}

TEST(Prediction, ASuccessResetsThePauseToTheFirst) {
  Prediction prediction(16, 4096);
  for (int i = 0; i < 5; ++i) prediction.failed();
  pause_of(prediction);
  prediction.succeeded();
  EXPECT_TRUE(prediction.try_now());
  prediction.failed();
  EXPECT_EQ(pause_of(prediction), 16);
}

// is_due() may be called any number of times; only pass() counts.
TEST(Prediction, BecomesDueWhenEnoughOpportunitiesPassed) {
  Prediction prediction(2, 8);
  prediction.failed();
  EXPECT_FALSE(prediction.is_due() || prediction.is_due() || prediction.is_due());
  prediction.pass();
  EXPECT_FALSE(prediction.is_due());
  prediction.pass();
  EXPECT_TRUE(prediction.is_due());
  prediction.pass();
  EXPECT_TRUE(prediction.is_due());
}

TEST(Prediction, EndingAPauseEarlyDoesNotShortenTheNextOne) {
  Prediction prediction(2, 8);
  prediction.failed();
  prediction.end_pause();
  EXPECT_TRUE(prediction.is_due());
  prediction.failed();
  EXPECT_EQ(pause_of(prediction), 4);
}

}  // namespace
}  // namespace verbena::runtime
