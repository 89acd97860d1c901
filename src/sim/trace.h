// A running hash over all events of a run: two runs of one seed must produce the same hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::sim {

class Trace {
 public:
  void add(uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001B3u ^ hash_ >> 29; }
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) add(std::to_integer<uint64_t>(b));
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325u;
};

}  // namespace verbena::sim
