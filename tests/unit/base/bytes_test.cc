// Big-endian loads and stores.
#include "base/bytes.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

TEST(Bytes, LoadsAndStoresBigEndianAtAnyAlignment) {
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

TEST(Bytes, TheLastWordIsTheWidestAlignedOneAtTheEnd) {
  EXPECT_EQ(last_word_bytes(0, 8), 8u);
  EXPECT_EQ(last_word_bytes(0, 16), 8u);
  EXPECT_EQ(last_word_bytes(4, 4), 4u) << "the range is shorter than the aligned word";
  EXPECT_EQ(last_word_bytes(0, 12), 4u);
  EXPECT_EQ(last_word_bytes(1, 5), 2u);
  EXPECT_EQ(last_word_bytes(3, 1), 1u);
  EXPECT_EQ(last_word_bytes(0, 7), 1u);
  EXPECT_EQ(last_word_bytes(6, 10), 8u);
}

}  // namespace
}  // namespace verbena
