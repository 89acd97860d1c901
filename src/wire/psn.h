// Psn: a 24-bit packet sequence number. It has no `<`, because the order of wrapping numbers is not
// transitive; distance_from() gives the distance between two PSNs.
#pragma once

#include <cstdint>
#include <optional>

#include "base/check.h"

namespace verbena::wire {

class Psn {
 public:
  explicit constexpr Psn(uint32_t value) : value_(value & 0xFFFFFF) {}

  constexpr uint32_t value() const { return value_; }
  constexpr Psn operator+(uint32_t n) const { return Psn(value_ + n); }
  constexpr Psn operator-(uint32_t n) const { return Psn(value_ - n); }
  constexpr bool operator==(const Psn&) const = default;

  // In [-2^23, 2^23): positive when *this is ahead of `other`.
  constexpr int32_t distance_from(Psn other) const {
    return static_cast<int32_t>((value_ - other.value_) << 8) >> 8;
  }

 private:
  uint32_t value_;
};

// A Psn or none, in one word: std::optional writes it in two parts and reads it as one, which
// stalls the processor on the hot path.
class OptionalPsn {
 public:
  constexpr OptionalPsn() = default;
  constexpr OptionalPsn(std::nullopt_t) {}
  constexpr OptionalPsn(Psn psn) : word_(psn.value()) {}

  constexpr bool has_value() const { return word_ != kNone; }
  explicit constexpr operator bool() const { return has_value(); }
  constexpr Psn operator*() const {
#ifdef _GLIBCXX_ASSERTIONS  // as std::optional does; not in the engine of the release build
    VERBENA_CHECK(has_value());
#endif
    return Psn(word_);
  }
  constexpr void reset() { word_ = kNone; }
  constexpr bool operator==(const OptionalPsn&) const = default;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t word_ = kNone;
};

static_assert(Psn(0).distance_from(Psn(0xFFFFFF)) == 1);
static_assert(Psn(0xFFFFFF).distance_from(Psn(0)) == -1);
static_assert(Psn(0x800000).distance_from(Psn(0)) == -(1 << 23));
static_assert(Psn(0x7FFFFF).distance_from(Psn(0)) == (1 << 23) - 1);
static_assert((Psn(0xFFFFFF) + 1) == Psn(0));

}  // namespace verbena::wire
