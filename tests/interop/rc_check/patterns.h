// The expected content of memory: messages, the gaps in them and the guards around them.
#pragma once

#include <endian.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "errors.h"
#include "limits.h"

namespace rc_check {

inline uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline void fill(uint8_t* to, size_t size, uint64_t key) {
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t word = htole64(mixed(key + at));
    memcpy(to + at, &word, std::min<size_t>(8, size - at));
  }
}

// `count` messages of `size` bytes, one a slot, each in `segments` segments with gaps between.
struct Layout {
  size_t size;
  unsigned count;
  unsigned segments;

  struct Segment {
    size_t at, size;
  };

  // Independent of the number of segments, so that both sides know where the other's slots are.
  size_t stride() const { return (size + 2 * kGuard + size_t{kMaxSges} * kGap + 63) / 64 * 64; }
  size_t total() const { return stride() * count; }
  // Slots start at every alignment.
  size_t start(unsigned slot) const { return stride() * slot + kGuard + slot % 8; }

  std::vector<Segment> of(unsigned slot) const {
    std::vector<Segment> all;
    size_t at = start(slot), left = size;
    for (unsigned i = 0; i < segments && left > 0; ++i) {
      // uneven and odd: 1/7 of the remaining bytes, and the rest in the last
      const size_t here = i + 1 == segments ? left : std::min(left, left / 7 + 1);
      all.push_back({at, here});
      at += here + kGap;
      left -= here;
    }
    return all;
  }
};

constexpr size_t kMemorySize = 4 * kMaxSize;
static_assert(kMemorySize >= kDepthOfLargest * (kMaxSize + 4096));
static_assert(kMemorySize >= kDepth * size_t{65536 + 4096});

inline void paint(uint8_t* memory, const Layout& layout, uint64_t key, bool with_messages) {
  fill(memory, layout.total(), mixed(key ^ 0xbac6));
  if (!with_messages) return;
  std::vector<uint8_t> message(layout.size);
  for (unsigned slot = 0; slot < layout.count; ++slot) {
    fill(message.data(), message.size(), mixed(key + slot + 1));
    size_t from = 0;
    for (const auto& segment : layout.of(slot)) {
      memcpy(memory + segment.at, message.data() + from, segment.size);
      from += segment.size;
    }
  }
}

// Describes the first difference from the expected content; empty if there is none.
inline std::string compare(const uint8_t* memory, const Layout& layout, uint64_t key) {
  std::vector<uint8_t> wanted(layout.total());
  paint(wanted.data(), layout, key, true);
  const auto [bad, good] = std::mismatch(memory, memory + wanted.size(), wanted.begin());
  if (good == wanted.end()) return {};
  const size_t at = static_cast<size_t>(bad - memory);
  size_t wrong = 0;
  for (size_t i = at; i < wanted.size(); ++i) wrong += memory[i] != wanted[i];
  const unsigned slot = static_cast<unsigned>(at / layout.stride());
  size_t before = 0;
  std::string where = words("a byte outside message %u, %zd from its start,", slot,
                            static_cast<ssize_t>(at) - static_cast<ssize_t>(layout.start(slot)));
  for (const auto& segment : layout.of(slot)) {
    if (at >= segment.at && at < segment.at + segment.size) {
      where = words("byte %zu of message %u", before + at - segment.at, slot);
    }
    before += segment.size;
  }
  return where + words(" is 0x%02x instead of 0x%02x (%zu wrong in all)", *bad, *good, wrong);
}

}  // namespace rc_check
