// Many seeds of connection management. VERBENA_SIM_SEEDS sets the number.
#include <gtest/gtest.h>

#include <cstdlib>

#include "sim/cm_run.h"

namespace verbena::sim {
namespace {

TEST(CmSweep, AllSeedsPass) {
  const char* wanted = std::getenv("VERBENA_SIM_SEEDS");
  const uint64_t count = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 3000;
  CmRunResult sum;
  int failed = 0;
  for (uint64_t seed = 0; seed < count && failed < 5; ++seed) {
    const CmRunResult r = run_cm_seed(seed);
    for (const std::string& violation : r.violations) {
      ADD_FAILURE() << "seed " << seed << ": " << violation;
    }
    failed += !r.ok();
    sum.attempts += r.attempts;
    sum.established += r.established;
    sum.rejected += r.rejected;
    sum.unreachable += r.unreachable;
    sum.sidr_replies += r.sidr_replies;
  }
  // The sweep must have covered the cases it is for.
  EXPECT_GT(sum.established, sum.attempts / 4);
  EXPECT_GT(sum.rejected, sum.attempts / 20);
  EXPECT_GT(sum.unreachable, sum.attempts / 100);
  EXPECT_GT(sum.sidr_replies, sum.attempts / 20);
}

TEST(CmSweep, SameSeedGivesTheSameTrace) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(run_cm_seed(seed).trace_hash, run_cm_seed(seed).trace_hash) << seed;
  }
  EXPECT_NE(run_cm_seed(1).trace_hash, run_cm_seed(2).trace_hash);
}

}  // namespace
}  // namespace verbena::sim
