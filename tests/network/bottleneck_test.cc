// The slow link by itself, with explicit time.
#include "tests/network/bottleneck.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::network {
namespace {

constexpr size_t kBytes = 1250;  // 10 us at 1 Gb/s
constexpr Instant kStart{1'000'000'000};
constexpr uint8_t kEct0 = 2, kCe = 3;

// An IPv4 packet with a number in its last byte.
Bottleneck::Packet packet(uint8_t number = 0, uint8_t ecn = 0) {
  Bottleneck::Packet bytes(kBytes);
  bytes[0] = 0x45;
  bytes[1] = ecn;
  bytes.back() = number;
  return bytes;
}

LinkSettings gigabit() { return {.bits_per_second = 1e9, .queue_bytes = 100'000}; }

struct Delivered {
  Instant time;
  uint8_t number;
  uint8_t ecn;
};

// Everything that the link delivers, each packet at its time.
std::vector<Delivered> drained(Bottleneck& link) {
  std::vector<Delivered> all;
  while (link.next_delivery() != kNever) {
    const Instant time = link.next_delivery();
    const auto bytes = link.deliver(time);
    all.push_back({time, bytes->back(), static_cast<uint8_t>((*bytes)[1] & 3)});
  }
  return all;
}

TEST(Bottleneck, DeliversAPacketAfterItsTransmissionAndTheDelay) {
  LinkSettings settings = gigabit();
  settings.delay = milliseconds(5);
  Bottleneck link(settings);
  link.arrive(packet(), kStart);
  const Instant due = kStart + microseconds(10) + milliseconds(5);
  EXPECT_EQ(link.next_delivery(), due);
  EXPECT_FALSE(link.deliver(due - nanoseconds(1)));
  EXPECT_TRUE(link.deliver(due));
  EXPECT_EQ(link.next_delivery(), kNever);
}

TEST(Bottleneck, APacketThatWasReadLateStillTakesTheWholeDelay) {
  LinkSettings settings = gigabit();
  settings.delay = milliseconds(5);
  Bottleneck link(settings);
  const Instant read = kStart + milliseconds(3);
  link.arrive(packet(), kStart, read);
  EXPECT_EQ(link.next_delivery(), read + milliseconds(5));
}

TEST(Bottleneck, SpacesPacketsByTheRate) {
  Bottleneck link(gigabit());
  for (uint8_t i = 0; i < 50; ++i) link.arrive(packet(i), kStart);
  const std::vector<Delivered> all = drained(link);
  ASSERT_EQ(all.size(), 50u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].time, kStart + microseconds(10) * static_cast<int64_t>(i + 1));
    EXPECT_EQ(all[i].number, i);
  }
}

TEST(Bottleneck, ForwardsExactlyTheRateOfAnOverload) {
  Bottleneck link(gigabit());
  constexpr int kPackets = 20'000;  // at 2 Gb/s, so for 100 ms
  for (int i = 0; i < kPackets; ++i) link.arrive(packet(), kStart + microseconds(5) * i);
  const LinkCounters& counters = link.counters();
  EXPECT_EQ(counters.arrived_packets, static_cast<uint64_t>(kPackets));
  EXPECT_EQ(counters.forwarded_packets + counters.dropped_packets, counters.arrived_packets);
  // What 100 ms transmit, and what is in the queue at their end.
  EXPECT_NEAR(static_cast<double>(counters.forwarded_bytes), 12.5e6 + 100e3, 2 * kBytes);
}

TEST(Bottleneck, GivesNoCreditForIdleTime) {
  Bottleneck link(gigabit());
  link.arrive(packet(), kStart);
  const Instant later = kStart + seconds(1);
  link.arrive(packet(), later);
  link.arrive(packet(), later);
  EXPECT_EQ(drained(link).back().time, later + microseconds(20));
}

TEST(Bottleneck, DropsWhatExceedsTheQueue) {
  LinkSettings settings = gigabit();
  settings.queue_bytes = 10 * kBytes;
  Bottleneck link(settings);
  for (int i = 0; i < 15; ++i) link.arrive(packet(), kStart);
  EXPECT_EQ(link.counters().forwarded_packets, 10u);
  EXPECT_EQ(link.counters().dropped_packets, 5u);
  link.arrive(packet(), kStart + microseconds(10));  // one packet has left
  EXPECT_EQ(link.counters().forwarded_packets, 11u);
}

TEST(Bottleneck, MarksOnlyAboveTheThresholdAndOnlyEct) {
  LinkSettings settings = gigabit();
  settings.ecn_bytes = 4 * kBytes;
  Bottleneck link(settings);
  for (uint8_t i = 0; i < 10; ++i) link.arrive(packet(i, i % 2 == 0 ? kEct0 : 0), kStart);
  for (const Delivered& each : drained(link)) {
    const uint8_t marked_or_not = each.number > 4 ? kCe : kEct0;
    EXPECT_EQ(each.ecn, each.number % 2 == 0 ? marked_or_not : 0) << int{each.number};
  }
  EXPECT_EQ(link.counters().marked_packets, 2u);  // 6 and 8
}

TEST(Bottleneck, LosesByTheSeed) {
  const auto delivered = [](uint64_t seed) {
    LinkSettings settings = gigabit();
    settings.queue_bytes = 10'000'000;
    settings.loss = 0.1;
    settings.seed = seed;
    Bottleneck link(settings);
    for (int i = 0; i < 5000; ++i) link.arrive(packet(static_cast<uint8_t>(i)), kStart);
    EXPECT_EQ(link.counters().forwarded_packets + link.counters().lost_packets, 5000u);
    std::vector<uint8_t> numbers;
    for (const Delivered& each : drained(link)) numbers.push_back(each.number);
    EXPECT_EQ(numbers.size(), link.counters().forwarded_packets);
    return numbers;
  };
  EXPECT_NEAR(static_cast<double>(delivered(1).size()), 4500, 100);
  EXPECT_EQ(delivered(1), delivered(1));
  EXPECT_NE(delivered(1), delivered(2));
}

TEST(Bottleneck, HoldsPacketsBackWithoutDelayingTheOthers) {
  LinkSettings settings = gigabit();
  settings.reordering = 0.1;
  settings.held_for = microseconds(35);
  Bottleneck link(settings);
  for (uint8_t i = 0; i < 80; ++i) link.arrive(packet(i), kStart);
  const std::vector<Delivered> all = drained(link);
  ASSERT_EQ(all.size(), 80u);
  size_t held = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Instant on_time = kStart + microseconds(10) * (all[i].number + 1);
    if (all[i].time != on_time) {
      ++held;
      EXPECT_EQ(all[i].time, on_time + settings.held_for);
    }
    if (i > 0) {
      EXPECT_GE(all[i].time, all[i - 1].time);
    }
  }
  EXPECT_GT(held, 0u);
  EXPECT_EQ(held, link.counters().reordered_packets);
}

TEST(Bottleneck, WeighsQueueLengthsByTime) {
  Bottleneck link(gigabit());
  link.settle(kStart);
  // 40 packets, 50,000 bytes: the queue drains for 400 us, then is empty for 100 us.
  for (int i = 0; i < 40; ++i) link.arrive(packet(), kStart);
  link.settle(kStart + microseconds(500));
  const QueueLengths& lengths = link.queue_lengths();
  EXPECT_EQ(lengths.max(), 50'000);
  EXPECT_EQ(lengths.quantile(0.1), 0);
  EXPECT_NEAR(lengths.quantile(0.5), 50'000 * 150 / 400., 1000);
  EXPECT_NEAR(lengths.quantile(0.95), 50'000 * 375 / 400., 1000);
}

TEST(Bottleneck, RestartsItsStatistics) {
  Bottleneck link(gigabit());
  for (int i = 0; i < 40; ++i) link.arrive(packet(), kStart);
  link.settle(kStart + microseconds(500));
  link.restart_statistics();
  link.settle(kStart + milliseconds(2));
  EXPECT_EQ(link.counters().arrived_packets, 0u);
  EXPECT_EQ(link.queue_lengths().max(), 0);
  EXPECT_EQ(drained(link).size(), 40u);
}

}  // namespace
}  // namespace verbena::network
