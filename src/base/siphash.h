// SipHash-2-4 of one 64-bit word. Without the key the results are indistinguishable from random
// numbers, even after many of them are known. For identifiers that must not be guessable.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace verbena {

using SipKey = std::array<uint64_t, 2>;

constexpr uint64_t siphash(const SipKey& key, uint64_t message) {
  uint64_t a = key[0] ^ 0x736f6d6570736575u;
  uint64_t b = key[1] ^ 0x646f72616e646f6du;
  uint64_t c = key[0] ^ 0x6c7967656e657261u;
  uint64_t d = key[1] ^ 0x7465646279746573u;
  const auto rounds = [&](int n) {
    for (int i = 0; i < n; ++i) {
      a += b, b = std::rotl(b, 13) ^ a, a = std::rotl(a, 32);
      c += d, d = std::rotl(d, 16) ^ c;
      a += d, d = std::rotl(d, 21) ^ a;
      c += b, b = std::rotl(b, 17) ^ c, c = std::rotl(c, 32);
    }
  };
  const uint64_t length_block = uint64_t{sizeof message} << 56;
  for (const uint64_t block : {message, length_block}) {
    d ^= block;
    rounds(2);
    a ^= block;
  }
  c ^= 0xFF;
  rounds(4);
  return a ^ b ^ c ^ d;
}

}  // namespace verbena
