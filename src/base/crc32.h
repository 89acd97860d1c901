// CRC-32 (IEEE 802.3, reflected), as the ICRC uses it: over bytes, and over bytes being copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena {

// Continues `crc` (0 at the start) over `data`.
uint32_t crc32(uint32_t crc, std::span<const std::byte> data);

// Copies `data` to `to` and continues `crc` over the bytes *as copied*: registered memory may
// change while we read it, and what is sent must match its checksum.
uint32_t crc32_copy(uint32_t crc, std::byte* to, std::span<const std::byte> data);

// The same for bytes that another processor reads next: where the CPU can, they are written to
// memory and not to this one's caches, where that other one would have to fetch each line. Quicker
// where `to` begins a line.
inline constexpr size_t kCacheLine = 64;
uint32_t crc32_copy_past_caches(uint32_t crc, std::byte* to, std::span<const std::byte> data);

// crc32 is linear: flipping input bits flips a fixed set of result bits that depends only on how
// many bytes follow. Given the xor of two CRCs of equal-length messages that differ only in the two
// bytes that are followed by `tail_bytes` further bytes, returns the xor of those two bytes (big
// endian), or -1 if no such difference explains it.
int32_t crc32_solve_two_bytes(uint32_t crc_difference, size_t tail_bytes);

// What a difference between two CRCs becomes when `bytes` further equal bytes are summed in both.
uint32_t crc32_advance(uint32_t crc_difference, size_t bytes);

}  // namespace verbena
