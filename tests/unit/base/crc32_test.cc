// CRC-32, compared with its definition, and the algebra that the ICRC verifier uses.
#include "base/crc32.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/prng.h"

namespace verbena {
namespace {

uint32_t naive(uint32_t crc, std::span<const std::byte> data) {
  crc = ~crc;
  for (const std::byte b : data) {
    crc ^= std::to_integer<uint32_t>(b);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

std::vector<std::byte> random_bytes(Prng& prng, size_t n) {
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>(prng.next());
  return bytes;
}

TEST(Crc32, MatchesKnownValues) {
  const char text[] = "123456789";
  EXPECT_EQ(crc32(0, std::as_bytes(std::span(text, 9))), 0xCBF43926u);
  EXPECT_EQ(crc32(0, {}), 0u);
  EXPECT_EQ(crc32(0x12345678, {}), 0x12345678u);
}

TEST(Crc32, MatchesTheDefinitionForEveryLengthAndAlignment) {
  Prng prng(1);
  const auto bytes = random_bytes(prng, 5000);
  std::vector<std::byte> to(5000);
  const auto check = [&](size_t begin, size_t length) {
    const auto part = std::span(bytes).subspan(begin, length);
    const auto seed = static_cast<uint32_t>(prng.next());
    const uint32_t expected = naive(seed, part);
    ASSERT_EQ(crc32(seed, part), expected) << begin << " " << length;
    const size_t offset = 1 + prng.below(64);
    to.assign(to.size(), std::byte{0xEE});
    ASSERT_EQ(crc32_copy(seed, to.data() + offset, part), expected) << begin << " " << length;
    ASSERT_EQ(std::memcmp(to.data() + offset, part.data(), length), 0);
    ASSERT_EQ(to[offset + length], std::byte{0xEE});
    ASSERT_EQ(to[offset - 1], std::byte{0xEE});
    to.assign(to.size(), std::byte{0xEE});
    ASSERT_EQ(crc32_copy_past_caches(seed, to.data() + offset, part), expected) << length;
    ASSERT_EQ(std::memcmp(to.data() + offset, part.data(), length), 0);
    ASSERT_EQ(to[offset + length], std::byte{0xEE});
    ASSERT_EQ(to[offset - 1], std::byte{0xEE});
  };
  for (size_t length = 0; length < 600; ++length) check(length % 67, length);
  for (const size_t length : {1023, 1024, 1025, 1087, 1088, 1089, 2048, 4095, 4096, 4097, 4900}) {
    for (size_t begin = 0; begin < 64; ++begin) check(begin, length);
  }
}

TEST(Crc32, CountsOneByteAsOnesAndLeavesTheDataUnchanged) {
  Prng prng(6);
  for (size_t length = 12; length < 1200; ++length) {
    const auto bytes = random_bytes(prng, length);
    auto changed = bytes;
    changed[4] = std::byte{0xFF};
    auto data = bytes;
    ASSERT_EQ(crc32_with_ones(9, data, 4), naive(9, changed)) << length;
    ASSERT_EQ(data, bytes);
  }
}

TEST(Crc32, ComputesTheSumOfALargeCopy) {
  Prng prng(2);
  const auto bytes = random_bytes(prng, 100'003);
  std::vector<std::byte> to(bytes.size());
  EXPECT_EQ(crc32_copy(7, to.data(), bytes), naive(7, bytes));
  EXPECT_EQ(to, bytes);
}

TEST(Crc32, SolvesForTwoBytes) {
  Prng prng(3);
  for (int i = 0; i < 2000; ++i) {
    const size_t tail = prng.below(4200);
    const size_t head = prng.below(10);
    auto bytes = random_bytes(prng, head + 2 + tail);
    const uint32_t before = crc32(0, bytes);
    const auto difference = static_cast<uint32_t>(prng.below(0x10000));
    bytes[head] ^= static_cast<std::byte>(difference >> 8);
    bytes[head + 1] ^= static_cast<std::byte>(difference);
    ASSERT_EQ(crc32_solve_two_bytes(before ^ crc32(0, bytes), tail),
              static_cast<int32_t>(difference));
  }
}

TEST(Crc32, FindsNoSolutionIfNoneExists) {
  Prng prng(4);
  int solved = 0;
  for (int i = 0; i < 20'000; ++i) {
    solved += crc32_solve_two_bytes(static_cast<uint32_t>(prng.next()), prng.below(4200)) >= 0;
  }
  EXPECT_LE(solved, 4);  // one in 65,536 by chance
}

TEST(Crc32, AdvancesADifference) {
  Prng prng(5);
  for (int i = 0; i < 500; ++i) {
    auto a = random_bytes(prng, 20);
    auto b = random_bytes(prng, 20);
    const uint32_t difference = crc32(0, a) ^ crc32(0, b);
    const auto tail = random_bytes(prng, prng.below(5000));
    const uint32_t later = crc32(crc32(0, a), tail) ^ crc32(crc32(0, b), tail);
    ASSERT_EQ(crc32_advance(difference, tail.size()), later);
  }
}

}  // namespace
}  // namespace verbena
