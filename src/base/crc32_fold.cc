// CRC-32 by folding (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ",
// Intel 2009). A block of 128 bits that lies D bits before a later block equals, modulo the
// polynomial, the sum of its halves times x^(D+32) and x^(D-32). This sum has 128 bits too, and is
// xored into the later block. The last block is a 16-byte message with the same CRC.
#include "base/crc32_fold.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <libdeflate.h>

#include <cstring>

#define VERBENA_TARGET_FOLD \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.1")))

namespace verbena {
namespace {

// x^n modulo the polynomial, bit-reflected, shifted left by one as products of reflected numbers
// require.
constexpr uint64_t power(uint32_t n) {
  uint32_t value = 0x80000000u;  // x^0
  for (; n > 0; --n) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320u : 0);
  return uint64_t{value} << 1;
}

struct FoldBy {
  uint64_t low;
  uint64_t high;
};
constexpr FoldBy distance(uint32_t bits) { return {power(bits + 32), power(bits - 32)}; }

// The constants of the paper.
static_assert(distance(512).low == 0x154442BD4 && distance(512).high == 0x1C6E41596);
static_assert(distance(128).low == 0x1751997D0 && distance(128).high == 0x0CCAA009E);

constexpr size_t kVector = 64;
constexpr size_t kLanes = 4;  // independent chains hide the latency of the multiplication

constexpr FoldBy kByLanes = distance(8 * kLanes * kVector);
constexpr FoldBy kByVector = distance(8 * kVector);
constexpr FoldBy kByBlock = distance(128);

VERBENA_TARGET_FOLD inline __m512i constants(FoldBy by) {
  const auto low = static_cast<long long>(by.low);
  const auto high = static_cast<long long>(by.high);
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

VERBENA_TARGET_FOLD inline __m512i fold(__m512i early, __m512i late, __m512i by) {
  const __m512i low = _mm512_clmulepi64_epi128(early, by, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(early, by, 0x11);
  return _mm512_ternarylogic_epi64(low, high, late, 0x96);  // xor of three
}

VERBENA_TARGET_FOLD inline __m128i fold(__m128i early, __m128i late, __m128i by) {
  const __m128i low = _mm_clmulepi64_si128(early, by, 0x00);
  const __m128i high = _mm_clmulepi64_si128(early, by, 0x11);
  return _mm_ternarylogic_epi64(low, high, late, 0x96);
}

enum class Copy : uint8_t { None, Plain, PastCaches };  // PastCaches: `to` is cache-line aligned

// Loads the next vector and stores the same value if copying, so the CRC covers the copied bytes.
template <Copy copy>
VERBENA_TARGET_FOLD inline __m512i load_next(const std::byte*& from, std::byte*& to) {
  const __m512i v = _mm512_loadu_si512(from);
  from += kVector;
  if constexpr (copy == Copy::Plain) _mm512_storeu_si512(to, v);
  if constexpr (copy == Copy::PastCaches) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), v);
  if constexpr (copy != Copy::None) to += kVector;
  return v;
}

template <Copy copy>
VERBENA_TARGET_FOLD uint32_t run(uint32_t crc, std::byte* to, std::span<const std::byte> data) {
  const std::byte* from = data.data();
  size_t left = data.size();

  __m512i a = load_next<copy>(from, to);
  __m512i b = load_next<copy>(from, to);
  __m512i c = load_next<copy>(from, to);
  __m512i d = load_next<copy>(from, to);
  left -= kLanes * kVector;
  a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc))));

  const __m512i by_lanes = constants(kByLanes);
  for (; left >= kLanes * kVector; left -= kLanes * kVector) {
    a = fold(a, load_next<copy>(from, to), by_lanes);
    b = fold(b, load_next<copy>(from, to), by_lanes);
    c = fold(c, load_next<copy>(from, to), by_lanes);
    d = fold(d, load_next<copy>(from, to), by_lanes);
  }
  const __m512i by_vector = constants(kByVector);
  a = fold(fold(fold(a, b, by_vector), c, by_vector), d, by_vector);
  for (; left >= kVector; left -= kVector) a = fold(a, load_next<copy>(from, to), by_vector);

  const __m128i by_block =
      _mm_set_epi64x(static_cast<long long>(kByBlock.high), static_cast<long long>(kByBlock.low));
  alignas(kVector) __m128i blocks[4];
  _mm512_store_si512(blocks, a);
  const __m128i rest =
      fold(fold(fold(blocks[0], blocks[1], by_block), blocks[2], by_block), blocks[3], by_block);

  // The CRC of the last block and the tail behind it, from a register of zero.
  alignas(16) std::byte end[16 + kVector];
  _mm_store_si128(reinterpret_cast<__m128i*>(end), rest);
  std::memcpy(end + 16, from, left);
  if constexpr (copy != Copy::None) std::memcpy(to, end + 16, left);
  return libdeflate_crc32(~0u, end, 16 + left);
}

}  // namespace

bool can_fold_crc32() {
  return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

uint32_t crc32_fold(uint32_t crc, std::span<const std::byte> data) {
  return run<Copy::None>(crc, nullptr, data);
}

uint32_t crc32_fold_copy(uint32_t crc, std::byte* to, std::span<const std::byte> data) {
  return run<Copy::Plain>(crc, to, data);
}

uint32_t crc32_fold_copy_past_caches(uint32_t crc, std::byte* to, std::span<const std::byte> data) {
  const size_t before_line = -reinterpret_cast<uintptr_t>(to) % kCacheLine;
  std::memcpy(to, data.data(), before_line);
  crc = before_line == 0 ? crc : libdeflate_crc32(crc, to, before_line);
  return run<Copy::PastCaches>(crc, to + before_line, data.subspan(before_line));
}

}  // namespace verbena

#endif
