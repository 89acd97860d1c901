// The GID table: an address keeps its index for as long as it exists.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/devices.h"

namespace verbena::runtime {
namespace {

using wire::Gid;

Gid gid(uint8_t last) {
  const uint8_t address[4] = {192, 0, 2, last};
  return Gid::from_ipv4(address);
}

std::vector<Gid> gids(std::initializer_list<uint8_t> lasts) {
  std::vector<Gid> all;
  for (const uint8_t last : lasts) all.push_back(gid(last));
  return all;
}

std::vector<Gid> contents(const GidTable& table) {
  std::vector<Gid> all;
  for (size_t i = 0; i < table.size(); ++i) all.push_back(table.at(i));
  return all;
}

TEST(GidTable, StartsEmpty) {
  GidTable table;
  EXPECT_EQ(table.size(), 0u);
  EXPECT_TRUE(table.at(0).is_zero());
  EXPECT_FALSE(table.update({}));
}

TEST(GidTable, FirstFillKeepsTheOrderGiven) {
  GidTable table;
  EXPECT_TRUE(table.update(gids({3, 1, 2})));
  EXPECT_EQ(contents(table), gids({3, 1, 2}));
}

TEST(GidTable, SameAddressesInAnotherOrderAreNoChange) {
  GidTable table;
  table.update(gids({1, 2, 3}));
  EXPECT_FALSE(table.update(gids({3, 1, 2})));
  EXPECT_EQ(contents(table), gids({1, 2, 3}));
}

TEST(GidTable, ANewAddressIsAppendedEvenIfListedFirst) {
  GidTable table;
  table.update(gids({1, 2}));
  EXPECT_TRUE(table.update(gids({9, 1, 2})));
  EXPECT_EQ(contents(table), gids({1, 2, 9}));
}

TEST(GidTable, ARemovedAddressLeavesAHole) {
  GidTable table;
  table.update(gids({1, 2, 3}));
  EXPECT_TRUE(table.update(gids({1, 3})));
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(table.at(0), gid(1));
  EXPECT_TRUE(table.at(1).is_zero());
  EXPECT_EQ(table.at(2), gid(3));
  EXPECT_FALSE(table.update(gids({1, 3})));  // the hole is not a change
}

TEST(GidTable, NewAddressesFillHolesInOrderThenAppend) {
  GidTable table;
  table.update(gids({1, 2, 3, 4}));
  table.update(gids({2, 4}));
  EXPECT_TRUE(table.update(gids({2, 4, 7, 8, 9})));
  EXPECT_EQ(contents(table), gids({7, 2, 8, 4, 9}));
}

TEST(GidTable, ReplacedAddressReusesTheIndex) {
  GidTable table;
  table.update(gids({1, 2}));
  EXPECT_TRUE(table.update(gids({2, 5})));
  EXPECT_EQ(contents(table), gids({5, 2}));
}

TEST(GidTable, DuplicateAddressHasOneEntry) {
  GidTable table;
  EXPECT_TRUE(table.update(gids({1, 1, 2})));
  EXPECT_EQ(contents(table), gids({1, 2}));
}

TEST(GidTable, NeverGrowsBeyondItsSize) {
  std::vector<Gid> many;
  for (unsigned i = 0; i < GidTable::kSize + 10; ++i) many.push_back(gid(static_cast<uint8_t>(i)));
  GidTable table;
  EXPECT_TRUE(table.update(many));
  EXPECT_EQ(table.size(), GidTable::kSize);
  EXPECT_EQ(table.at(GidTable::kSize - 1), many[GidTable::kSize - 1]);
  EXPECT_TRUE(table.at(GidTable::kSize).is_zero());
  EXPECT_FALSE(table.update(many));  // addresses without an entry are no change either
  many.erase(many.begin());
  EXPECT_TRUE(table.update(many));  // now one of them has an entry
  EXPECT_EQ(table.at(0), many[GidTable::kSize - 1]);
}

}  // namespace
}  // namespace verbena::runtime
