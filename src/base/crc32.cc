// CRC-32 by libdeflate, or by crc32_fold.h where the CPU supports it, and the algebra that solves
// for an unknown 16-bit field.
#include "base/crc32.h"

#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/crc32_fold.h"

namespace verbena {
namespace {

// Small enough that the copied bytes are still in the L1 cache when the CRC is computed over them.
constexpr size_t kCopyBlock = 8192;

constexpr uint32_t kPolynomial = 0xEDB88320u;  // reflected: bit 31 is x^0

// a * b modulo the polynomial, both reflected.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// Undoes one multiplication by x: the inverse of (b >> 1) ^ (b & 1 ? P : 0).
constexpr uint32_t divide_by_x(uint32_t b) {
  return (b & 0x80000000u) != 0 ? ((b ^ kPolynomial) << 1 | 1u) : b << 1;
}

constexpr uint32_t kOne = 0x80000000u;

// Element k is the 2^k-th power of `base`.
constexpr std::array<uint32_t, 32> squares_of(uint32_t base) {
  std::array<uint32_t, 32> powers{};
  for (auto& power : powers) {
    power = base;
    base = multiply(base, base);
  }
  return powers;
}

// x^(8 * 2^k) and x^(-8 * 2^k): these factors move a CRC forward or back over 2^k zero bytes.
constexpr auto kPowers = squares_of(kOne >> 8);
constexpr auto kInversePowers = squares_of([] {
  uint32_t p = kOne;
  for (int i = 0; i < 8; ++i) p = divide_by_x(p);
  return p;
}());

constexpr uint32_t step(uint32_t crc, size_t bytes, const std::array<uint32_t, 32>& powers) {
  for (size_t k = 0; bytes != 0; ++k, bytes >>= 1) {
    if (bytes & 1) crc = multiply(crc, powers[k]);
  }
  return crc;
}

}  // namespace

uint32_t crc32(uint32_t crc, std::span<const std::byte> data) {
  if (data.size() >= kMinFoldBytes && can_fold_crc32()) return crc32_fold(crc, data);
  if (data.empty()) return crc;  // libdeflate restarts the CRC on a null pointer
  return libdeflate_crc32(crc, data.data(), data.size());
}

uint32_t crc32_with_ones(uint32_t crc, std::span<std::byte> data, size_t ones_at) {
  if (folds_with_ones(data.size(), ones_at)) return crc32_fold_with_ones(crc, data, ones_at);
  const std::byte original = data[ones_at];
  data[ones_at] = std::byte{0xFF};
  crc = crc32(crc, data);
  data[ones_at] = original;
  return crc;
}

uint32_t crc32_copy_past_caches(uint32_t crc, std::byte* to, std::span<const std::byte> data) {
  if (data.size() >= kMinFoldBytes + kCacheLine && can_fold_crc32()) {
    return crc32_fold_copy_past_caches(crc, to, data);
  }
  return crc32_copy(crc, to, data);
}

uint32_t crc32_copy(uint32_t crc, std::byte* to, std::span<const std::byte> data) {
  if (data.size() >= kMinFoldBytes && can_fold_crc32()) return crc32_fold_copy(crc, to, data);
  while (!data.empty()) {
    const size_t n = std::min(data.size(), kCopyBlock);
    std::memcpy(to, data.data(), n);
    crc = libdeflate_crc32(crc, to, n);
    to += n;
    data = data.subspan(n);
  }
  return crc;
}

int32_t crc32_solve_two_bytes(uint32_t crc_difference, size_t tail_bytes) {
  // A step back over the tail and the two bytes gives their bits as they were xored into the low 16
  // bits of the register, first byte lowest. If a higher bit is set, no two bytes explain the
  // difference.
  const uint32_t bits = step(crc_difference, tail_bytes + 2, kInversePowers);
  if ((bits & 0xFFFF0000u) != 0) return -1;
  return static_cast<int32_t>((bits & 0xFF) << 8 | bits >> 8);
}

uint32_t crc32_advance(uint32_t crc_difference, size_t bytes) {
  return step(crc_difference, bytes, kPowers);
}

}  // namespace verbena
