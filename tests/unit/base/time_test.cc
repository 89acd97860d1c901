// Instants and durations.
#include "base/time.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

TEST(Time, AddsAndSubtractsDurations) {
  const Instant start{100};
  EXPECT_EQ((start + microseconds(2)).ns, 2100);
  EXPECT_EQ(start + seconds(1) - start, milliseconds(1000));
  EXPECT_LT(start, kNever);
  EXPECT_EQ(milliseconds(3) / 3 * 2, microseconds(2000));
}

}  // namespace
}  // namespace verbena
