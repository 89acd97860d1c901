// A queue with reserved capacity.
#include "base/queue.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

TEST(Queue, KeepsTheOrderAcrossPushAndPop) {
  Queue<int> queue;
  int pushed = 0;
  int popped = 0;
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue.push(pushed++));
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(queue.front(), popped);
      int item = -1;
      ASSERT_TRUE(queue.pop(item));
      EXPECT_EQ(item, popped++);
    }
    EXPECT_EQ(queue.size(), static_cast<size_t>(pushed - popped));
  }
  queue.remove_if([](int item) { return item % 2 == 0; });
  int item = -1;
  while (queue.pop(item)) EXPECT_EQ(item % 2, 1);
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.pop(item));
}

}  // namespace
}  // namespace verbena
