// CRC-32 (IEEE 802.3, reflected), which the ICRC uses, with variants that also copy the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena {

// Continues `crc` (0 at the start) over `data`.
uint32_t crc32(uint32_t crc, std::span<const std::byte> data);

// The same, with the byte at `ones_at` as 0xFF. `data` may be modified and restored.
uint32_t crc32_with_ones(uint32_t crc, std::span<std::byte> data, size_t ones_at);

// Copies `data` to `to` and continues `crc` over the bytes *as copied*. Registered memory may
// change during the copy, and the sent bytes must match their checksum.
uint32_t crc32_copy(uint32_t crc, std::byte* to, std::span<const std::byte> data);

// crc32_copy() for bytes that another processor reads next. Where the CPU supports it, the bytes go
// to memory and bypass this processor's caches, so the reader need not fetch each line from there.
// Faster if `to` is aligned to a cache line.
inline constexpr size_t kCacheLine = 64;
uint32_t crc32_copy_past_caches(uint32_t crc, std::byte* to, std::span<const std::byte> data);

// CRC-32 is linear: flipping input bits flips a fixed set of result bits, which depends only on the
// number of bytes that follow. `crc_difference` is the xor of the CRCs of two messages of equal
// length that differ only in two bytes, which `tail_bytes` further bytes follow. Returns the xor of
// those two bytes (big endian), or -1 if no two bytes explain the difference.
int32_t crc32_solve_two_bytes(uint32_t crc_difference, size_t tail_bytes);

// The xor of two CRCs after both continue over the same `bytes` further bytes.
uint32_t crc32_advance(uint32_t crc_difference, size_t bytes);

}  // namespace verbena
