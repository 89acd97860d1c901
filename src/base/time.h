// Time as values. Code below runtime/ never reads a clock: the caller passes an Instant.
#pragma once

#include <compare>
#include <cstdint>

namespace verbena {

// A span of time in nanoseconds.
struct Duration {
  int64_t ns = 0;
  constexpr auto operator<=>(const Duration&) const = default;
  constexpr Duration operator+(Duration other) const { return {ns + other.ns}; }
  constexpr Duration operator-(Duration other) const { return {ns - other.ns}; }
  constexpr Duration operator*(int64_t n) const { return {ns * n}; }
  constexpr Duration operator/(int64_t n) const { return {ns / n}; }
};

constexpr Duration nanoseconds(int64_t n) { return {n}; }
constexpr Duration microseconds(int64_t n) { return {n * 1000}; }
constexpr Duration milliseconds(int64_t n) { return {n * 1000 * 1000}; }
constexpr Duration seconds(int64_t n) { return {n * 1000 * 1000 * 1000}; }

// Nanoseconds since an arbitrary start.
struct Instant {
  int64_t ns = 0;
  constexpr auto operator<=>(const Instant&) const = default;
  constexpr Instant operator+(Duration d) const { return {ns + d.ns}; }
  constexpr Instant operator-(Duration d) const { return {ns - d.ns}; }
  constexpr Duration operator-(Instant other) const { return {ns - other.ns}; }
};

inline constexpr Instant kNever{INT64_MAX};

}  // namespace verbena
