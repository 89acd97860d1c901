// Gathering and scattering.
#include "core/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace verbena::core {
namespace {

class PlacementTest : public testing::Test {
 public:
  PlacementTest() {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i);
    key_ = registry_.add_region(1, memory_.data(), memory_.size(), 0, kLocalWrite).value();
  }
  std::vector<uint8_t> gathered(std::span<const Sge> sges, uint32_t offset, uint32_t length) {
    Gather g;
    EXPECT_TRUE(gather(view_, 1, sges, offset, length, g));
    std::vector<uint8_t> out;
    for (const auto& span : g.view()) {
      for (const std::byte b : span) out.push_back(std::to_integer<uint8_t>(b));
    }
    return out;
  }
  std::array<std::byte, 256> memory_;
  MemoryRegistry registry_{1};
  MemoryView view_{registry_};
  uint32_t key_;
};

TEST_F(PlacementTest, GathersAnyRangeOfTheMessage) {
  const Sge sges[] = {{100, 3, key_}, {0, 0, 0xBAD}, {10, 2, key_}, {50, 4, key_}};
  const std::vector<uint8_t> message = {100, 101, 102, 10, 11, 50, 51, 52, 53};
  for (uint32_t from = 0; from <= 9; ++from) {
    for (uint32_t length = 0; from + length <= 9; ++length) {
      EXPECT_EQ(gathered(sges, from, length),
                std::vector<uint8_t>(message.begin() + from, message.begin() + from + length));
    }
  }
}

TEST_F(PlacementTest, GatherRejectsKeysWithoutAccess) {
  Gather g;
  const Sge sges[] = {{0, 8, key_}, {0, 8, key_ ^ 1}};
  EXPECT_TRUE(gather(view_, 1, sges, 0, 8, g));
  EXPECT_FALSE(gather(view_, 1, sges, 4, 8, g));
  EXPECT_FALSE(gather(view_, 2, sges, 0, 8, g));
  EXPECT_FALSE(gather(view_, 1, sges, 12, 8, g));  // beyond the message
  const Sge beyond[] = {{250, 8, key_}};
  EXPECT_FALSE(gather(view_, 1, beyond, 0, 8, g));
}

TEST_F(PlacementTest, ScatterWritesAllOrNothing) {
  const auto before = memory_;
  const std::byte data[8] = {};
  const Sge bad[] = {{100, 4, key_}, {0, 4, key_ ^ 1}};
  EXPECT_FALSE(scatter(view_, 1, bad, 0, data, true));
  EXPECT_EQ(memory_, before);
  const Sge good[] = {{100, 4, key_}, {200, 4, key_}};
  EXPECT_TRUE(scatter(view_, 1, good, 2, std::span(data).first(4), true));
  for (const size_t i : {102, 103, 200, 201}) EXPECT_EQ(memory_[i], std::byte{0});
  for (const size_t i : {101, 104, 199, 202}) EXPECT_EQ(memory_[i], static_cast<std::byte>(i));
}

TEST_F(PlacementTest, PlaceLastWordLastCopiesEveryLengthAtEveryAlignment) {
  std::array<std::byte, 64> from;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(0x80 + i);
  for (size_t align = 0; align < 9; ++align) {
    for (size_t length = 0; length < 40; ++length) {
      alignas(8) std::array<std::byte, 64> to{};
      place_last_word_last(to.data() + align, std::span(from).first(length));
      EXPECT_TRUE(std::equal(from.begin(), from.begin() + static_cast<ptrdiff_t>(length),
                             to.begin() + static_cast<ptrdiff_t>(align)));
      EXPECT_EQ(to[align + length], std::byte{0});
    }
  }
}

}  // namespace
}  // namespace verbena::core
