// The data of a board's generator: counting 32-bit words, little-endian. The first word of a
// connection is 0; each message continues the count of the previous one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace verbena::daq {

inline constexpr uint32_t kGeneratorImmediate = 12345678;

inline void fill_pattern(std::span<std::byte> to, uint32_t first_word) {
  constexpr size_t kBlock = 16;
  uint32_t block[kBlock];
  size_t at = 0;
  for (; at < to.size(); at += sizeof block, first_word += kBlock) {
    for (uint32_t i = 0; i < kBlock; ++i) block[i] = first_word + i;
    const size_t left = to.size() - at;
    if (left < sizeof block) {
      std::memcpy(to.data() + at, block, left);
    } else {
      std::memcpy(to.data() + at, block, sizeof block);
    }
  }
}

// The offset of the first byte that differs from the pattern; nullopt: none differs.
inline std::optional<size_t> find_mismatch(std::span<const std::byte> data, uint32_t first_word) {
  constexpr size_t kBlock = 64;
  uint32_t block[kBlock];
  for (size_t at = 0; at < data.size(); at += sizeof block, first_word += kBlock) {
    const size_t bytes = std::min(data.size() - at, sizeof block);
    if (bytes < sizeof block) fill_pattern(std::as_writable_bytes(std::span(block)), first_word);
    std::memcpy(block, data.data() + at, bytes);
    uint32_t difference = 0;
    for (uint32_t i = 0; i < kBlock; ++i) difference |= block[i] ^ (first_word + i);
    if (difference == 0) continue;
    uint32_t expected[kBlock];
    fill_pattern(std::as_writable_bytes(std::span(expected)), first_word);
    const auto wanted = std::as_bytes(std::span(expected));
    for (size_t i = 0; i < bytes; ++i) {
      if (wanted[i] != data[at + i]) return at + i;
    }
  }
  return std::nullopt;
}

}  // namespace verbena::daq
