// Scatter/gather lists.
#include "sim/scatter_gather.h"

#include <algorithm>
#include <cstring>

namespace verbena::sim {

std::vector<core::Sge> split(const Region& region, uint64_t offset, uint32_t length,
                             uint32_t max_sges, Prng& prng) {
  std::vector<core::Sge> sges;
  if (max_sges == 0) return sges;
  const auto count = static_cast<uint32_t>(prng.below(4) != 0 ? 1 : 1 + prng.below(max_sges));
  uint32_t left = length;
  for (uint32_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    const auto n = last ? left : static_cast<uint32_t>(prng.below(left / (count - i) * 2 + 1));
    sges.push_back({region.iova + offset + (length - left), std::min(n, left), region.key});
    left -= std::min(n, left);
  }
  for (size_t i = sges.size(); i > 1; --i) std::swap(sges[i - 1], sges[prng.below(i)]);
  if (length == 0 && prng.below(2) == 0) sges.clear();
  return sges;
}

Bytes gather(const Region& region, std::span<const core::Sge> sges, uint32_t length) {
  Bytes out;
  for (const core::Sge& s : sges) {
    const auto range = region.at(s.address - region.iova, s.length);
    out.insert(out.end(), range.begin(), range.end());
  }
  out.resize(std::min<size_t>(out.size(), length));
  return out;
}

void scatter(const Region& region, std::span<const core::Sge> sges,
             std::span<const std::byte> bytes) {
  for (const core::Sge& s : sges) {
    const size_t n = std::min<size_t>(s.length, bytes.size());
    if (n != 0) std::memcpy(region.at(s.address - region.iova, n).data(), bytes.data(), n);
    bytes = bytes.subspan(n);
  }
}

Bytes random_bytes(uint32_t length, Prng& prng) {
  Bytes out(length);
  uint64_t word = prng.next();
  for (size_t i = 0; i < out.size(); ++i) {
    if (i % 8 == 0) word = word * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<std::byte>(word >> (i % 8 * 8));
  }
  return out;
}

}  // namespace verbena::sim
