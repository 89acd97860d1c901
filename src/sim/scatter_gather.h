// Random scatter/gather lists for messages, and access to the bytes that they describe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"
#include "core/types.h"
#include "sim/arena.h"
#include "sim/network.h"

namespace verbena::sim {

// `length` bytes from `offset` on, in up to max_sges elements in any order, some of them empty.
std::vector<core::Sge> split(const Region& region, uint64_t offset, uint32_t length,
                             uint32_t max_sges, Prng& prng);

// The first `length` bytes of the message that `sges` describe.
Bytes gather(const Region& region, std::span<const core::Sge> sges, uint32_t length);

Bytes random_bytes(uint32_t length, Prng& prng);

// Copies `bytes` to the memory that `sges` describe.
void scatter(const Region& region, std::span<const core::Sge> sges,
             std::span<const std::byte> bytes);

}  // namespace verbena::sim
