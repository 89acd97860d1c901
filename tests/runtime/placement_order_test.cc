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
  // On a busy machine each round can take a time slice of somebody else's; then fewer must do.
  constexpr int kRounds = 20000;
  constexpr auto kPatience = std::chrono::seconds(2);
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
          std::this_thread::yield();  // the two may share one processor
        }
        for (size_t i = 0; i < length; ++i) {
          if (buffer[i] != expected) torn.fetch_add(1);
        }
        read.store(round, std::memory_order_release);
      }
    });
    std::vector<std::byte> message(length);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (int round = 1; round <= kRounds && std::chrono::steady_clock::now() < end; ++round) {
      std::fill(message.begin(), message.end(), static_cast<std::byte>(round % 251 + 1));
      place_last_byte_last(reinterpret_cast<std::byte*>(buffer.data()), message);
      while (read.load(std::memory_order_acquire) != round) std::this_thread::yield();
    }
    stop = true;
    reader.join();
    EXPECT_GT(read.load(), 0);
    EXPECT_EQ(torn.load(), 0) << length << " bytes";
  }
}

}  // namespace
}  // namespace verbena::core
