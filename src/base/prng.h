// SplitMix64: a small seeded generator for numbers that must be reproducible (simulator) or only
// evenly distributed. Where a seed must not be guessable, the owner takes it from the kernel.
#pragma once

#include <cstdint>

namespace verbena {

// Call next() at most once per expression: compilers choose the order in which operands and
// arguments are evaluated, and a seed must give the same run with every compiler.
class Prng {
 public:
  explicit Prng(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // Nearly uniform in [0, bound); bound > 0.
  uint64_t below(uint64_t bound) { return next() % bound; }

  // Uniform in [0, 1).
  double fraction() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  bool chance(double probability) { return fraction() < probability; }

 private:
  uint64_t state_;
};

}  // namespace verbena
