// The copy that bypasses the caches copies the same bytes as memcpy and changes no others.
#include "base/past_caches.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/prng.h"

namespace verbena {
namespace {

TEST(CopyPastCaches, CopiesEveryLengthAndAlignment) {
  constexpr size_t kRoom = 1024;
  constexpr std::byte kUntouched{0xA5};
  Prng prng(3);
  std::vector<std::byte> from(kRoom);
  for (auto& b : from) b = static_cast<std::byte>(prng.next());
  alignas(64) std::byte to[kRoom];
  for (size_t to_at = 0; to_at < 64; ++to_at) {
    for (size_t from_at : {size_t{0}, size_t{1}, to_at, size_t{63}}) {
      for (size_t bytes = 0; bytes < 330; ++bytes) {
        std::memset(to, 0xA5, sizeof to);
        copy_past_caches(to + to_at, from.data() + from_at, bytes);
        ASSERT_EQ(std::memcmp(to + to_at, from.data() + from_at, bytes), 0);
        for (size_t i = 0; i < to_at; ++i) ASSERT_EQ(to[i], kUntouched);
        for (size_t i = to_at + bytes; i < to_at + bytes + 70; ++i) ASSERT_EQ(to[i], kUntouched);
      }
    }
  }
}

}  // namespace
}  // namespace verbena
