// CRC-32 by carry-less multiplication of 512-bit vectors, for CPUs that have it: faster than
// libdeflate's on whole packets, and copies on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/crc32.h"

namespace verbena {

// Below this libdeflate is as fast.
inline constexpr size_t kLeastToFold = 1024;

#if defined(__x86_64__)
// Asks the CPU; a few loads, so it may be called every time.
bool can_fold_crc32();
// As crc32() and crc32_copy(), for at least kLeastToFold bytes on a CPU that can.
uint32_t crc32_fold(uint32_t crc, std::span<const std::byte> data);
uint32_t crc32_fold_copy(uint32_t crc, std::byte* to, std::span<const std::byte> data);
// For at least kLeastToFold + kCacheLine bytes.
uint32_t crc32_fold_copy_past_caches(uint32_t crc, std::byte* to, std::span<const std::byte> data);
#else
inline bool can_fold_crc32() { return false; }
inline uint32_t crc32_fold(uint32_t, std::span<const std::byte>) { return 0; }
inline uint32_t crc32_fold_copy(uint32_t, std::byte*, std::span<const std::byte>) { return 0; }
inline uint32_t crc32_fold_copy_past_caches(uint32_t, std::byte*, std::span<const std::byte>) {
  return 0;
}
#endif

}  // namespace verbena
