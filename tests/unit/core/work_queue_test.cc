// Rings of work requests whose capacity is any number.
#include "core/work_queue.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace verbena::core {
namespace {

constexpr uint32_t kSges = 3;
constexpr uint32_t kInlineBytes = 5;

void push(SendQueue& queue, uint64_t number) {
  SendWqe& wqe = queue.slot();
  wqe.wr_id = number;
  wqe.sge_count = kSges;
  for (Sge& sge : queue.sge_slots(queue.tail())) sge.address = number;
  std::fill_n(queue.inline_bytes(queue.tail()), kInlineBytes, static_cast<std::byte>(number));
  queue.push();
}

void expect_front(SendQueue& queue, uint64_t number) {
  EXPECT_EQ(queue.front().wr_id, number);
  ASSERT_EQ(queue.sges(queue.head()).size(), kSges);
  for (const Sge& sge : queue.sges(queue.head())) EXPECT_EQ(sge.address, number);
  for (uint32_t i = 0; i < kInlineBytes; ++i)
    EXPECT_EQ(queue.inline_bytes(queue.head())[i], static_cast<std::byte>(number));
}

TEST(WorkQueue, HoldsExactlyItsCapacity) {
  for (const uint32_t capacity : {1u, 2u, 3u, 5u, 8u, 1000u}) {
    SendQueue queue(capacity, kSges, kInlineBytes);
    EXPECT_EQ(queue.capacity(), capacity);
    for (uint32_t i = 0; i < capacity; ++i) {
      EXPECT_FALSE(queue.full()) << capacity;
      push(queue, i);
    }
    EXPECT_TRUE(queue.full()) << capacity;
    EXPECT_EQ(queue.size(), capacity);
  }
}

TEST(WorkQueue, KeepsEachRequestsListAndInlineBytesWhenItWraps) {
  for (const uint32_t capacity : {1u, 3u, 5u, 8u}) {
    SendQueue queue(capacity, kSges, kInlineBytes);
    uint64_t pushed = 0;
    uint64_t popped = 0;
    for (int round = 0; round < 5; ++round) {
      while (!queue.full()) push(queue, pushed++);
      for (uint32_t i = 0; i < (capacity + 1) / 2; ++i) {
        expect_front(queue, popped++);
        queue.pop();
      }
    }
    while (!queue.empty()) {
      expect_front(queue, popped++);
      queue.pop();
    }
    EXPECT_EQ(popped, pushed);
  }
}

TEST(WorkQueue, UnpostRemovesTheNewestRequests) {
  SendQueue queue(3, kSges, kInlineBytes);
  for (uint64_t i = 0; i < 3; ++i) push(queue, i);
  queue.pop();
  push(queue, 3);
  queue.unpost(2);
  EXPECT_EQ(queue.size(), 1u);
  expect_front(queue, 1);
  push(queue, 4);
  queue.pop();
  expect_front(queue, 4);
}

TEST(WorkQueue, WithoutCapacityIsEmptyAndFull) {
  const SendQueue queue(0, kSges, kInlineBytes);
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(queue.full());
}

}  // namespace
}  // namespace verbena::core
