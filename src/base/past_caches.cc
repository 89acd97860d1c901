// Non-temporal stores, by instructions that every x86-64 CPU has.
#include "base/past_caches.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace verbena {

#if defined(__x86_64__)

void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kLine = 64;
  constexpr size_t kBlock = sizeof(__m128i);
  const auto plain = [&](size_t n) {
    std::memcpy(to, from, n);
    to += n;
    from += n;
    bytes -= n;
  };
  // The CPU would fetch a cache line that is written only in part.
  plain(std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kLine));
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
    for (size_t at = 0; at < kLine; at += kBlock) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    }
  }
  plain(bytes);
  _mm_sfence();
}

#else

void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace verbena
