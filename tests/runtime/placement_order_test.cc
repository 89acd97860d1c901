// A message's last byte becomes visible last: programs spin on it and then read the rest.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "core/placement.h"

namespace verbena::core {
namespace {

TEST(PlacementOrder, LastByteBecomesVisibleLast) {
  // On a busy machine each round can take a time slice, so the number of rounds is limited by time.
  constexpr int kRounds = 20000;
  constexpr auto kTimeLimit = std::chrono::seconds(2);
  for (const size_t length : {9u, 64u, 200u, 1024u, 4096u}) {
    std::vector<unsigned char> buffer(length, 0);
    std::atomic<int> read{0};
    std::atomic<int> torn{0};
    std::atomic<bool> stop{false};
    std::thread reader([&] {
      for (int round = 1; round <= kRounds; ++round) {
        const auto expected = static_cast<unsigned char>(round % 251 + 1);
        while (__atomic_load_n(&buffer[length - 1], __ATOMIC_ACQUIRE) != expected) {
          if (stop) return;
          std::this_thread::yield();  // both threads may share one CPU
        }
        // The thread sanitizer orders memory only by loads from the address of the store.
        if (length % 8 == 0) {
          (void)__atomic_load_n(reinterpret_cast<uint64_t*>(&buffer[length - 8]), __ATOMIC_ACQUIRE);
        }
        for (size_t i = 0; i < length; ++i) {
          if (buffer[i] != expected) torn.fetch_add(1);
        }
        read.store(round, std::memory_order_release);
      }
    });
    std::vector<std::byte> message(length);
    const auto end = std::chrono::steady_clock::now() + kTimeLimit;
    for (int round = 1; round <= kRounds && std::chrono::steady_clock::now() < end; ++round) {
      std::fill(message.begin(), message.end(), static_cast<std::byte>(round % 251 + 1));
      place_last_word_last(reinterpret_cast<std::byte*>(buffer.data()), message);
      while (read.load(std::memory_order_acquire) != round) std::this_thread::yield();
    }
    stop = true;
    reader.join();
    EXPECT_GT(read.load(), 0);
    EXPECT_EQ(torn.load(), 0) << length << " bytes";
  }
}

// Programs also spin on a counter of four or eight bytes, alone or at the end of a message.
TEST(PlacementOrder, LastWordBecomesVisibleLastAndWhole) {
  constexpr int kRounds = 20000;
  constexpr auto kTimeLimit = std::chrono::seconds(1);
  for (const size_t length : {4u, 8u, 12u, 64u, 1000u, 4096u}) {
    std::vector<uint64_t> words(length / 8 + 1);
    auto* const buffer = reinterpret_cast<unsigned char*>(words.data());
    const auto last_word = [&]() -> uint64_t {
      if (length % 8 == 0) return __atomic_load_n(&words[length / 8 - 1], __ATOMIC_ACQUIRE);
      auto* const at = reinterpret_cast<uint32_t*>(buffer + length - 4);
      return __atomic_load_n(at, __ATOMIC_ACQUIRE) * 0x100000001u;
    };
    std::atomic<int> read{0};
    std::atomic<int> torn{0};
    std::atomic<bool> stop{false};
    std::thread reader([&] {
      uint64_t before = 0;
      for (int round = 1; round <= kRounds; ++round) {
        uint64_t word;
        while ((word = last_word()) == before) {
          if (stop) return;
        }
        const auto expected = static_cast<unsigned char>(round % 251 + 1);
        torn.fetch_add(word != expected * 0x0101010101010101u ? 1 : 0);
        for (size_t i = 0; i < length; ++i) torn.fetch_add(buffer[i] != expected ? 1 : 0);
        before = expected * 0x0101010101010101u;
        read.store(round, std::memory_order_release);
      }
    });
    std::vector<std::byte> message(length);
    const auto end = std::chrono::steady_clock::now() + kTimeLimit;
    for (int round = 1; round <= kRounds && std::chrono::steady_clock::now() < end; ++round) {
      std::fill(message.begin(), message.end(), static_cast<std::byte>(round % 251 + 1));
      place_last_word_last(reinterpret_cast<std::byte*>(buffer), message);
      while (read.load(std::memory_order_acquire) != round) {
        if (std::chrono::steady_clock::now() > end) break;
      }
    }
    stop = true;
    reader.join();
    EXPECT_GT(read.load(), 0);
    EXPECT_EQ(torn.load(), 0) << length << " bytes";
  }
}

}  // namespace
}  // namespace verbena::core
