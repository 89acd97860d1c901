// What is tried again less and less often.
#include "runtime/guess.h"

#include <gtest/gtest.h>

namespace verbena::runtime {
namespace {

// How many occasions pass until it is tried again.
int pause_of(Guess& guess) {
  int pause = 0;
  while (!guess.worth_trying()) ++pause;
  return pause;
}

TEST(Guess, IsTriedAtOnceAndAsLongAsItComesTrue) {
  Guess guess(16, 4096);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(guess.worth_trying());
    guess.came_true();
  }
}

TEST(Guess, RestsTwiceAsLongAfterEachDisappointmentUpToALimit) {
  Guess guess(16, 4096);
  int last = 0;
  for (int i = 0; i < 8; ++i) {
    guess.disappointed();
    const int pause = pause_of(guess);
    EXPECT_EQ(pause, last == 0 ? 16 : 2 * last);
    last = pause;
  }
  for (int i = 0; i < 4; ++i) guess.disappointed();
  EXPECT_EQ(pause_of(guess), 4096);
}

TEST(Guess, ForgetsDisappointmentsOnceItCameTrue) {
  Guess guess(16, 4096);
  for (int i = 0; i < 5; ++i) guess.disappointed();
  pause_of(guess);
  guess.came_true();
  EXPECT_TRUE(guess.worth_trying());
  guess.disappointed();
  EXPECT_EQ(pause_of(guess), 16);
}

// Where occasions pass by themselves, it is asked any number of times.
TEST(Guess, WaitsForOccasionsThatPass) {
  Guess guess(2, 8);
  guess.disappointed();
  EXPECT_FALSE(guess.due() || guess.due() || guess.due());
  guess.pass();
  EXPECT_FALSE(guess.due());
  guess.pass();
  EXPECT_TRUE(guess.due());
  guess.pass();
  EXPECT_TRUE(guess.due());
}

TEST(Guess, APauseEndsEarlyAndTheNextIsAsLongAsItWouldHaveBeen) {
  Guess guess(2, 8);
  guess.disappointed();
  guess.end_pause();
  EXPECT_TRUE(guess.due());
  guess.disappointed();
  EXPECT_EQ(pause_of(guess), 4);
}

}  // namespace
}  // namespace verbena::runtime
