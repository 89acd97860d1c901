// Arena: a host's memory, with guard bytes around everything that is registered. No peer may change
// the guards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace verbena::sim {

// A registered area of an arena.
struct Region {
  std::span<std::byte> bytes;
  uint64_t iova = 0;  // artificial, so that no real address gets into a packet
  uint32_t key = 0;

  std::span<std::byte> at(uint64_t offset, uint64_t length) const {
    return bytes.subspan(offset, length);
  }
};

// A region whose backing stores its content at each FLUSH to persistence.
struct DurableRegion : Region {
  static constexpr uint64_t kBytes = 64;
  // Behind `bytes` and not registered: the stored content, and the number of FLUSHes.
  std::span<std::byte> kept;
  std::span<std::byte> times;
};

class Arena {
 public:
  static constexpr size_t kGuardBytes = 256;

  // `length` bytes between guards, zeroed, 64-byte aligned.
  std::span<std::byte> allocate(uint64_t length);
  // Whether all guards are unchanged.
  bool intact() const;

 private:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    size_t begin;
    size_t length;
    size_t total;
  };
  std::vector<Block> blocks_;
};

}  // namespace verbena::sim
