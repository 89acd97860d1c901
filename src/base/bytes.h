// Big-endian loads and stores at any alignment. All network bytes are read and written by these.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace verbena {

static_assert(std::endian::native == std::endian::little, "big-endian hosts are not tested");

inline uint8_t load_u8(const std::byte* p) { return std::to_integer<uint8_t>(*p); }

inline uint16_t load_be16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_bswap16(v);
}

inline uint32_t load_be32(const std::byte* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_bswap32(v);
}

inline uint32_t load_be24(const std::byte* p) {
  return uint32_t{load_u8(p)} << 16 | uint32_t{load_u8(p + 1)} << 8 | load_u8(p + 2);
}

inline uint64_t load_be64(const std::byte* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_bswap64(v);
}

inline void store_u8(std::byte* p, uint8_t v) { *p = std::byte{v}; }

inline void store_be16(std::byte* p, uint16_t v) {
  v = __builtin_bswap16(v);
  std::memcpy(p, &v, sizeof v);
}

inline void store_be32(std::byte* p, uint32_t v) {
  v = __builtin_bswap32(v);
  std::memcpy(p, &v, sizeof v);
}

inline void store_be24(std::byte* p, uint32_t v) {
  store_u8(p, static_cast<uint8_t>(v >> 16));
  store_u8(p + 1, static_cast<uint8_t>(v >> 8));
  store_u8(p + 2, static_cast<uint8_t>(v));
}

inline void store_be64(std::byte* p, uint64_t v) {
  v = __builtin_bswap64(v);
  std::memcpy(p, &v, sizeof v);
}

// The width of the aligned word that ends the given range: 8, 4, 2 or 1 bytes. Programs spin on the
// last word of a message.
constexpr size_t last_word_bytes(uint64_t address, size_t bytes) {
  const uint64_t end = (address + bytes) | 8;
  size_t width = end & (~end + 1);  // the lowest bit
  while (width > bytes) width /= 2;
  return width;
}

// memcpy for short data of varying length, where the call would cost more than the copy.
inline void copy_short(std::byte* to, const std::byte* from, size_t bytes) {
  const auto move = [&]<typename Word>(Word word, size_t at) {
    std::memcpy(&word, from + at, sizeof word);
    std::memcpy(to + at, &word, sizeof word);
  };
  if (bytes >= 8) {
    for (size_t at = 0; at + 8 < bytes; at += 8) move(uint64_t{}, at);
    move(uint64_t{}, bytes - 8);  // may overlap the previous word
  } else if (bytes >= 4) {
    move(uint32_t{}, 0);
    move(uint32_t{}, bytes - 4);
  } else {
    for (size_t at = 0; at < bytes; ++at) to[at] = from[at];
  }
}

// copy_short() for data that was just stored in words of four bytes. A CPU that loads such data in
// wider words waits until the stores are done.
inline void copy_words(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; at + 4 <= bytes; at += 4) {
    uint32_t word;
    std::memcpy(&word, from + at, sizeof word);
    std::memcpy(to + at, &word, sizeof word);
  }
  for (; at < bytes; ++at) to[at] = from[at];
}

}  // namespace verbena
