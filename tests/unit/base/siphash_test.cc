// SipHash against its published test vector.
#include "base/siphash.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

TEST(Siphash, MatchesThePublishedVector) {
  // Key 00 01 .. 0f, message 00 01 .. 07, read as little-endian words.
  const SipKey key{0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
  EXPECT_EQ(siphash(key, 0x0706050403020100u), 0x93f5f5799a932462u);
}

TEST(Siphash, DependsOnKeyAndMessage) {
  EXPECT_NE(siphash({1, 2}, 3), siphash({2, 1}, 3));
  EXPECT_NE(siphash({1, 2}, 3), siphash({1, 2}, 4));
}

}  // namespace
}  // namespace verbena
