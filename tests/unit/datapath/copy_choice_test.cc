// Trials between the two ways to copy, with a clock that the test moves.
#include "datapath/copy_choice.h"

#include <gtest/gtest.h>

namespace verbena::datapath {
namespace {

Instant test_now;

class CopyChoiceTest : public testing::Test {
 public:
  CopyChoiceTest() { test_now = Instant{1'000'000}; }

  // Copies so many bytes; a nanosecond takes one of these numbers of bytes.
  void copy(int64_t bytes, int64_t past_caches_rate, int64_t cached_rate) {
    constexpr int64_t kPacket = 64 * 1024;
    for (; bytes > 0; bytes -= kPacket) {
      const int64_t rate = choice_.is_past_caches() ? past_caches_rate : cached_rate;
      (choice_.is_past_caches() ? past_caches_ : cached_) += kPacket;
      test_now = test_now + Duration{kPacket / rate};
      choice_.add(kPacket);
    }
  }
  static constexpr int64_t kTrial = 4 * (CopyChoice::kUnmeasured + CopyChoice::kMeasured);

  CopyChoice choice_{[] { return test_now; }};
  int64_t past_caches_ = 0;
  int64_t cached_ = 0;
};

TEST_F(CopyChoiceTest, FirstTrialTriesBothWaysEqually) {
  copy(kTrial, 10, 10);
  EXPECT_EQ(past_caches_, cached_);
  EXPECT_TRUE(choice_.is_past_caches()) << "without a difference nothing changes";
}

TEST_F(CopyChoiceTest, TakesTheFasterWay) {
  copy(kTrial, 8, 12);
  EXPECT_FALSE(choice_.is_past_caches());
  copy(CopyChoice::kShortestStay, 8, 12);
  copy(kTrial, 12, 8);  // the threads have moved to other processors
  EXPECT_TRUE(choice_.is_past_caches());
}

TEST_F(CopyChoiceTest, IgnoresASmallDifference) {
  copy(kTrial, 100, 103);
  EXPECT_TRUE(choice_.is_past_caches());
}

TEST_F(CopyChoiceTest, APauseDuringOneSeriesChangesNothing) {
  copy(CopyChoice::kUnmeasured + CopyChoice::kMeasured / 2, 12, 10);
  test_now = test_now + seconds(1);
  copy(kTrial - CopyChoice::kUnmeasured - CopyChoice::kMeasured / 2, 12, 10);
  EXPECT_TRUE(choice_.is_past_caches());
}

TEST_F(CopyChoiceTest, TrialsBecomeRarerWhileTheyChangeNothing) {
  copy(int64_t{200} << 30, 12, 6);
  EXPECT_TRUE(choice_.is_past_caches());
  EXPECT_LT(cached_, 10 * kTrial / 2);
  EXPECT_GE(cached_, 6 * kTrial / 2);
}

}  // namespace
}  // namespace verbena::datapath
