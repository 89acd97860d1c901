// CRC-32 by carry-less multiplication of 512-bit vectors, for CPUs that support it. It is faster
// than libdeflate on whole packets and can copy the bytes at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/crc32.h"

namespace verbena {

// libdeflate is as fast on shorter data.
inline constexpr size_t kMinFoldBytes = 256;

#if defined(__x86_64__)
// Costs a few loads, so callers need not cache the result.
bool can_fold_crc32();
// As crc32() and crc32_copy(), for at least kMinFoldBytes bytes, where can_fold_crc32().
uint32_t crc32_fold(uint32_t crc, std::span<const std::byte> data);
uint32_t crc32_fold_copy(uint32_t crc, std::byte* to, std::span<const std::byte> data);
// As crc32_with_ones(), if folds_with_ones().
uint32_t crc32_fold_with_ones(uint32_t crc, std::span<const std::byte> data, size_t ones_at);
// The byte must be among those in front of the whole vectors.
inline bool folds_with_ones(size_t bytes, size_t ones_at) {
  return bytes >= kMinFoldBytes && bytes % 4 == 0 && ones_at <= (bytes - 1) % 64 &&
         can_fold_crc32();
}
// For at least kMinFoldBytes + kCacheLine bytes.
uint32_t crc32_fold_copy_past_caches(uint32_t crc, std::byte* to, std::span<const std::byte> data);
#else
inline bool can_fold_crc32() { return false; }
inline uint32_t crc32_fold(uint32_t, std::span<const std::byte>) { return 0; }
inline uint32_t crc32_fold_copy(uint32_t, std::byte*, std::span<const std::byte>) { return 0; }
inline uint32_t crc32_fold_with_ones(uint32_t, std::span<const std::byte>, size_t) { return 0; }
inline bool folds_with_ones(size_t, size_t) { return false; }
inline uint32_t crc32_fold_copy_past_caches(uint32_t, std::byte*, std::span<const std::byte>) {
  return 0;
}
#endif

}  // namespace verbena
