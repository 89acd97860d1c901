// Skips tests that need steering if the kernel accepts no BPF programs. scripts/steering.sh checks
// this; VERBENA_STEERING has the result.
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
  GTEST_SKIP() << "the kernel accepts no BPF programs (VERBENA_STEERING=off)"
