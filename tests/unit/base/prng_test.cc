// The generator of pseudo-random numbers.
#include "base/prng.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

TEST(Prng, TheSameSeedGivesTheSameNumbers) {
  Prng a(7), b(7), c(8);
  for (int i = 0; i < 100; ++i) {
    const uint64_t x = a.next();
    EXPECT_EQ(x, b.next());
    EXPECT_NE(x, c.next());
  }
  int hits = 0;
  for (int i = 0; i < 10000; ++i) hits += a.chance(0.25);
  EXPECT_NEAR(hits, 2500, 200);
  EXPECT_FALSE(a.chance(0));
  EXPECT_TRUE(a.chance(1));
}

}  // namespace
}  // namespace verbena
