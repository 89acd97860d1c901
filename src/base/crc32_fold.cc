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
static_assert(kMinFoldBytes >= kLanes * kVector);

constexpr FoldBy kByLanes = distance(8 * kLanes * kVector);
constexpr FoldBy kByThree = distance(8 * 3 * kVector);
constexpr FoldBy kByTwo = distance(8 * 2 * kVector);
constexpr FoldBy kByVector = distance(8 * kVector);
constexpr FoldBy kByBlock = distance(128);

VERBENA_TARGET_FOLD inline __m512i constants(FoldBy by) {
  const auto low = static_cast<long long>(by.low);
  const auto high = static_cast<long long>(by.high);
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

VERBENA_TARGET_FOLD inline __m128i constants(uint64_t high, uint64_t low) {
  return _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
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

// With a mask, because GCC 12 warns of an undefined value in the extraction without one.
template <int index>
VERBENA_TARGET_FOLD inline __m128i block(__m512i v) {
  return _mm512_maskz_extracti32x4_epi32(0xF, v, index);
}

// The four blocks of a vector become one.
VERBENA_TARGET_FOLD inline __m128i fold_blocks(__m512i v) {
  constexpr FoldBy k3 = distance(3 * 128);
  constexpr FoldBy k2 = distance(2 * 128);
  const auto number = [](uint64_t n) { return static_cast<long long>(n); };
  const __m512i by =
      _mm512_set_epi64(0, 0, number(kByBlock.high), number(kByBlock.low), number(k2.high),
                       number(k2.low), number(k3.high), number(k3.low));
  const __m512i folded = fold(v, _mm512_setzero_si512(), by);  // the last block becomes zero
  return _mm_xor_si128(
      _mm_ternarylogic_epi64(block<0>(folded), block<1>(folded), block<2>(folded), 0x96),
      block<3>(v));
}

// The CRC register after a block: to 96 bits, to 64 bits, then Barrett's reduction.
VERBENA_TARGET_FOLD inline uint32_t reduce(__m128i last) {
  constexpr uint64_t kPolynomial = 0x1DB710641;  // reflected, 33 bits
  constexpr uint64_t kQuotient = 0x1F7011641;    // x^64 divided by it
  const __m128i low_word = constants(0, UINT32_MAX);
  const __m128i by = constants(power(128 - 32), power(64));
  const __m128i barrett = constants(kQuotient, kPolynomial);
  const __m128i bits96 =
      _mm_xor_si128(_mm_clmulepi64_si128(last, by, 0x10), _mm_srli_si128(last, 8));
  const __m128i bits64 = _mm_xor_si128(
      _mm_clmulepi64_si128(_mm_and_si128(bits96, low_word), by, 0x00), _mm_srli_si128(bits96, 4));
  const __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(bits64, low_word), barrett, 0x10);
  const __m128i multiple = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_word), barrett, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(bits64, multiple), 1));
}

VERBENA_TARGET_FOLD inline __m512i initial(uint32_t crc) {
  return _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc)));
}

// The first bytes of the data, so many that whole vectors remain, at the end of a vector. Zeros in
// front do not change a CRC that starts from a register of zero. The masked load reads nothing in
// front of the data.
struct Head {
  size_t bytes;  // a multiple of four, 4 to kVector
  __mmask64 mask;

  explicit Head(size_t data_bytes)
      : bytes((data_bytes - 1) % kVector + 1), mask(~uint64_t{0} << (kVector - bytes)) {}

  VERBENA_TARGET_FOLD __m512i load(const std::byte* data) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(data) + bytes - kVector;
    return _mm512_maskz_loadu_epi8(mask, reinterpret_cast<const void*>(at));
  }
  VERBENA_TARGET_FOLD void store(std::byte* to, __m512i v) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(to) + bytes - kVector;
    _mm512_mask_storeu_epi8(reinterpret_cast<void*>(at), mask, v);
  }
  VERBENA_TARGET_FOLD __m512i start(__m512i v, uint32_t crc) const {
    const auto first_word = static_cast<__mmask16>(1u << (kVector - bytes) / 4);
    return _mm512_xor_si512(v, _mm512_maskz_set1_epi32(first_word, static_cast<int>(~crc)));
  }
  VERBENA_TARGET_FOLD __m512i set_ones(__m512i v, size_t at) const {
    return _mm512_mask_set1_epi8(v, uint64_t{1} << (kVector - bytes + at), -1);
  }
};

enum class Ones : uint8_t { None, OneByte };

// Loads the next vector and stores the same value if copying, so the CRC covers the copied bytes.
template <bool copies>
VERBENA_TARGET_FOLD inline __m512i load_next(const std::byte*& from, std::byte*& to) {
  const __m512i v = _mm512_loadu_si512(from);
  from += kVector;
  if constexpr (copies) {
    _mm512_storeu_si512(to, v);
    to += kVector;
  }
  return v;
}

// `data` has a multiple of four bytes. The byte at `ones_at` counts as 0xFF; it is in the head.
template <bool copies, Ones ones>
VERBENA_TARGET_FOLD inline uint32_t run(uint32_t crc, std::byte* to,
                                        std::span<const std::byte> data, size_t ones_at) {
  const Head head(data.size());
  __m512i a = head.load(data.data());
  if constexpr (copies) head.store(to, a);
  if constexpr (ones == Ones::OneByte) a = head.set_ones(a, ones_at);
  a = head.start(a, crc);

  const std::byte* from = data.data() + head.bytes;
  if constexpr (copies) to += head.bytes;
  __m512i b = load_next<copies>(from, to);
  __m512i c = load_next<copies>(from, to);
  __m512i d = load_next<copies>(from, to);
  size_t vectors = (data.size() - head.bytes) / kVector - 3;

  const __m512i by_lanes = constants(kByLanes);
  for (; vectors >= kLanes; vectors -= kLanes) {
    a = fold(a, load_next<copies>(from, to), by_lanes);
    b = fold(b, load_next<copies>(from, to), by_lanes);
    c = fold(c, load_next<copies>(from, to), by_lanes);
    d = fold(d, load_next<copies>(from, to), by_lanes);
  }
  d = fold(c, d, constants(kByVector));
  a = fold(a, _mm512_setzero_si512(), constants(kByThree));
  a = _mm512_xor_si512(a, fold(b, d, constants(kByTwo)));
  const __m512i by_vector = constants(kByVector);
  for (; vectors > 0; --vectors) a = fold(a, load_next<copies>(from, to), by_vector);
  return ~reduce(fold_blocks(a));
}

// The bytes in front of a multiple of four.
inline size_t odd_bytes(std::span<const std::byte> data) { return data.size() % 4; }

// With non-temporal stores. `to` is aligned to a cache line, so the rest of the data is behind the
// vectors.
VERBENA_TARGET_FOLD uint32_t run_past_caches(uint32_t crc, std::byte* to,
                                             std::span<const std::byte> data) {
  const std::byte* from = data.data();
  size_t left = data.size();
  const auto load = [&]() VERBENA_TARGET_FOLD {
    const __m512i v = _mm512_loadu_si512(from);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), v);
    from += kVector;
    to += kVector;
    left -= kVector;
    return v;
  };
  __m512i a = _mm512_xor_si512(load(), initial(crc));
  __m512i b = load();
  __m512i c = load();
  __m512i d = load();
  const __m512i by_lanes = constants(kByLanes);
  while (left >= kLanes * kVector) {
    a = fold(a, load(), by_lanes);
    b = fold(b, load(), by_lanes);
    c = fold(c, load(), by_lanes);
    d = fold(d, load(), by_lanes);
  }
  const __m512i by_vector = constants(kByVector);
  a = fold(fold(fold(a, b, by_vector), c, by_vector), d, by_vector);
  while (left >= kVector) a = fold(a, load(), by_vector);

  // The CRC of the last block and the rest behind it, from a register of zero.
  alignas(16) std::byte end[16 + kVector];
  _mm_store_si128(reinterpret_cast<__m128i*>(end), fold_blocks(a));
  std::memcpy(end + 16, from, left);
  std::memcpy(to, end + 16, left);
  return libdeflate_crc32(~0u, end, 16 + left);
}

}  // namespace

bool can_fold_crc32() {
  return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

VERBENA_TARGET_FOLD uint32_t crc32_fold(uint32_t crc, std::span<const std::byte> data) {
  const size_t odd = odd_bytes(data);
  if (odd != 0) crc = libdeflate_crc32(crc, data.data(), odd);
  return run<false, Ones::None>(crc, nullptr, data.subspan(odd), 0);
}

VERBENA_TARGET_FOLD uint32_t crc32_fold_with_ones(uint32_t crc, std::span<const std::byte> data,
                                                  size_t ones_at) {
  return run<false, Ones::OneByte>(crc, nullptr, data, ones_at);
}

VERBENA_TARGET_FOLD uint32_t crc32_fold_copy(uint32_t crc, std::byte* to,
                                             std::span<const std::byte> data) {
  const size_t odd = odd_bytes(data);
  if (odd != 0) {
    std::memcpy(to, data.data(), odd);
    crc = libdeflate_crc32(crc, to, odd);
  }
  return run<true, Ones::None>(crc, to + odd, data.subspan(odd), 0);
}

uint32_t crc32_fold_copy_past_caches(uint32_t crc, std::byte* to, std::span<const std::byte> data) {
  const size_t before_line = -reinterpret_cast<uintptr_t>(to) % kCacheLine;
  std::memcpy(to, data.data(), before_line);
  crc = before_line == 0 ? crc : libdeflate_crc32(crc, to, before_line);
  return run_past_caches(crc, to + before_line, data.subspan(before_line));
}

}  // namespace verbena

#endif
