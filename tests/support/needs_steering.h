// Tests of what only the kernel's steering of packets gives: where it takes no BPF programs, they
// are skipped. scripts/steering.sh finds out, VERBENA_STEERING tells.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace verbena::test {

inline bool steering_is_possible() {
  const char* const wanted = std::getenv("VERBENA_STEERING");
  return wanted == nullptr || std::string_view(wanted) != "off";
}

}  // namespace verbena::test

#define VERBENA_NEEDS_STEERING()              \
  if (!verbena::test::steering_is_possible()) \
  GTEST_SKIP() << "the kernel takes no BPF programs (VERBENA_STEERING=off)"
