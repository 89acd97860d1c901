// Which lines of a flood are written, with simulated time.
#include "runtime/log_limit.h"

#include <gtest/gtest.h>

namespace verbena::runtime {
namespace {

constexpr Instant kStart{seconds(5).ns};

TEST(LogLimit, WritesAllLinesOfABurst) {
  LogLimit limit;
  for (uint32_t i = 0; i < LogLimit::kBurst; ++i) EXPECT_EQ(limit.pass(kStart), 0u);
  EXPECT_EQ(limit.pass(kStart), std::nullopt);
}

TEST(LogLimit, WritesOneLinePerSecondOfAFloodWithTheSuppressedCount) {
  LogLimit limit;
  uint64_t written = 0;
  uint64_t counted = 0;
  for (int ms = 0; ms < 30'000; ++ms) {  // a line each millisecond
    const auto hidden = limit.pass(kStart + milliseconds(ms));
    if (!hidden) continue;
    ++written;
    counted += *hidden + 1;
  }
  EXPECT_EQ(written, LogLimit::kBurst + 29);
  EXPECT_GT(counted, 28'000u);
}

TEST(LogLimit, WritesABurstAgainAfterAPause) {
  LogLimit limit;
  for (int i = 0; i < 100; ++i) limit.pass(kStart);
  const Instant later = kStart + seconds(60);
  EXPECT_EQ(limit.pass(later), 90u);
  for (uint32_t i = 1; i < LogLimit::kBurst; ++i) EXPECT_EQ(limit.pass(later), 0u);
}

}  // namespace
}  // namespace verbena::runtime
