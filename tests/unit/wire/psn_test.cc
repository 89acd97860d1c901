// Sequence numbers modulo 2^24.
#include "wire/psn.h"

#include <gtest/gtest.h>

namespace verbena::wire {
namespace {

TEST(Psn, DistanceIsTheShorterOfBothDirections) {
  constexpr uint32_t kValues[] = {0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFE, 0xFFFFFF};
  for (const uint32_t a : kValues) {
    for (const uint32_t b : kValues) {
      int32_t expected = static_cast<int32_t>(a) - static_cast<int32_t>(b);
      if (expected >= 1 << 23) expected -= 1 << 24;
      if (expected < -(1 << 23)) expected += 1 << 24;
      EXPECT_EQ(Psn(a).distance_from(Psn(b)), expected) << a << " from " << b;
    }
  }
}

TEST(Psn, ArithmeticWraps) {
  EXPECT_EQ(Psn(0xFFFFFF) + 2, Psn(1));
  EXPECT_EQ(Psn(0) - 1, Psn(0xFFFFFF));
  EXPECT_EQ(Psn(0x1000005), Psn(5));
  for (uint32_t n = 0; n < 100; ++n)
    EXPECT_EQ((Psn(0xFFFFC0) + n).distance_from(Psn(0xFFFFC0)), static_cast<int32_t>(n));
}

TEST(OptionalPsn, HoldsEveryPsnOrNone) {
  for (const uint32_t value : {0u, 1u, 0x800000u, 0xFFFFFFu}) {
    OptionalPsn psn = Psn(value);
    ASSERT_TRUE(psn.has_value());
    EXPECT_EQ(*psn, Psn(value));
    psn.reset();
    EXPECT_FALSE(psn);
    EXPECT_EQ(psn, OptionalPsn());
  }
}

}  // namespace
}  // namespace verbena::wire
