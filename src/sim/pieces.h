// Cutting messages into scatter/gather lists at random, and reading them back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"
#include "core/types.h"
#include "sim/arena.h"
#include "sim/network.h"

namespace verbena::sim {

// `length` bytes from `offset` on, in up to max_sges pieces in any order, some of them empty.
std::vector<core::Sge> cut(const Region& region, uint64_t offset, uint32_t length,
                           uint32_t max_sges, Prng& prng);

// The first `length` bytes of the message that `sges` describe.
Bytes gather(const Region& region, std::span<const core::Sge> sges, uint32_t length);

Bytes random_bytes(uint32_t length, Prng& prng);

// Copies `bytes` to where `sges` point.
void scatter(const Region& region, std::span<const core::Sge> sges,
             std::span<const std::byte> bytes);

}  // namespace verbena::sim
