// Big-endian loads and stores, and the small values of base.
#include "base/bytes.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "base/result.h"
#include "base/time.h"

namespace verbena {
namespace {

TEST(Bytes, BigEndianAtAnyAlignment) {
  for (size_t at = 0; at < 8; ++at) {
    std::byte b[24] = {};
    store_be64(b + at, 0x0102030405060708u);
    for (uint8_t i = 0; i < 8; ++i) EXPECT_EQ(std::to_integer<int>(b[at + i]), i + 1);
    EXPECT_EQ(load_be64(b + at), 0x0102030405060708u);
    EXPECT_EQ(load_be32(b + at), 0x01020304u);
    EXPECT_EQ(load_be24(b + at), 0x010203u);
    EXPECT_EQ(load_be16(b + at), 0x0102u);
    store_be24(b + at, 0xAABBCC);
    EXPECT_EQ(load_be32(b + at), 0xAABBCC04u);
    store_be32(b + at, 0xDEADBEEF);
    store_be16(b + at + 4, 0x1234);
    EXPECT_EQ(load_be64(b + at), 0xDEADBEEF12340708u);
  }
}

TEST(Prng, SameSeedSameNumbers) {
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

TEST(Result, HoldsAValueOrAReason) {
  Result<int> good = 5;
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 5);
  const Result<int> bad = Error{ENOMEM, "full"};
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, ENOMEM);
  EXPECT_TRUE(Status{}.ok());
  EXPECT_FALSE((Status{Error{EINVAL, "no"}}.ok()));
}

TEST(Time, Arithmetic) {
  const Instant start{100};
  EXPECT_EQ((start + microseconds(2)).ns, 2100);
  EXPECT_EQ(start + seconds(1) - start, milliseconds(1000));
  EXPECT_LT(start, kNever);
  EXPECT_EQ(milliseconds(3) / 3 * 2, microseconds(2000));
}

}  // namespace
}  // namespace verbena
