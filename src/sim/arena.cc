// Guarded memory.
#include "sim/arena.h"

#include <algorithm>

namespace verbena::sim {
namespace {

constexpr std::byte kGuard{0xE7};

}  // namespace

std::span<std::byte> Arena::allocate(uint64_t length) {
  Block b;
  b.length = length;
  b.total = length + 2 * kGuardBytes + 64;
  b.memory = std::make_unique<std::byte[]>(b.total);
  std::fill_n(b.memory.get(), b.total, kGuard);
  const auto address = reinterpret_cast<uintptr_t>(b.memory.get()) + kGuardBytes;
  b.begin = kGuardBytes + (64 - address % 64) % 64;
  std::byte* p = b.memory.get() + b.begin;
  std::fill_n(p, length, std::byte{0});
  blocks_.push_back(std::move(b));
  return {p, length};
}

bool Arena::intact() const {
  return std::ranges::all_of(blocks_, [](const Block& b) {
    const std::byte* m = b.memory.get();
    const auto guard = [](std::byte x) { return x == kGuard; };
    return std::all_of(m, m + b.begin, guard) &&
           std::all_of(m + b.begin + b.length, m + b.total, guard);
  });
}

}  // namespace verbena::sim
