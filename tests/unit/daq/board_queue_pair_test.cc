// The times of RNR NAKs. The packets of a board's queue pairs: board_test.cc.
#include "daq/board_queue_pair.h"

#include <gtest/gtest.h>

namespace verbena::daq {
namespace {

TEST(RnrTimer, MatchesTheSpecification) {
  EXPECT_EQ(rnr_timer(0).ns, 655'360'000);
  EXPECT_EQ(rnr_timer(1).ns, 10'000);
  EXPECT_EQ(rnr_timer(12).ns, 640'000);
  EXPECT_EQ(rnr_timer(31).ns, 491'520'000);
}

}  // namespace
}  // namespace verbena::daq
