// The pattern that boards send and receivers check.
#include "daq/pattern.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::daq {
namespace {

TEST(Pattern, FindsEveryWrongByte) {
  for (const size_t size : {size_t{4}, size_t{64}, size_t{200}}) {
    std::vector<std::byte> data(size);
    fill_pattern(data, 0xFFFFFFF0);
    EXPECT_FALSE(find_mismatch(data, 0xFFFFFFF0).has_value());
    EXPECT_TRUE(find_mismatch(data, 0xFFFFFFF1).has_value());
    for (size_t i = 0; i < size; ++i) {
      data[i] ^= std::byte{1};
      EXPECT_EQ(find_mismatch(data, 0xFFFFFFF0), i);
      data[i] ^= std::byte{1};
    }
  }
}

}  // namespace
}  // namespace verbena::daq
