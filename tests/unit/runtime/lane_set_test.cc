// The lanes of completion queues and of their channel.
#include "runtime/lane_set.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::runtime {
namespace {

class LaneSetTest : public ::testing::Test, private LaneOwner {
 protected:
  Lane make_lane(size_t index) { return {device_, *this, lanes_, memory_, index}; }
  static std::vector<size_t> all(const LaneIndices& indices) {
    std::vector<size_t> found;
    indices.each([&](size_t index) { found.push_back(index); });
    return found;
  }

 private:
  void on_management(Lane&, Instant) override {}
  void deliver_events(Lane&) override {}
  BackgroundThread::ExtraFds control_fds(const Lane&) const override { return {-1, -1}; }
  void on_wakeup(Lane&, const BackgroundThread::Wakeup&) override {}

  const DeviceInfo device_;
  core::MemoryRegistry memory_{1};

 protected:
  LaneSet lanes_{device_, *this, memory_};
};

TEST_F(LaneSetTest, ACompletionChannelHasTheLanesOfItsQueuesOnly) {
  Lane third = make_lane(3), last = make_lane(LaneSet::kMaxLanes - 1), other = make_lane(5);
  LaneIndices channel;
  CqLanes one(lanes_.first(), &channel), two(lanes_.first(), &channel);
  CqLanes without_channel(lanes_.first());
  EXPECT_TRUE(channel.empty());  // no queue pair uses them
  two.bind(last);
  one.bind(third);
  without_channel.bind(other);
  EXPECT_EQ(all(channel), (std::vector<size_t>{3, LaneSet::kMaxLanes - 1}));
  one.add(other);
  EXPECT_EQ(all(channel), (std::vector<size_t>{3, 5, LaneSet::kMaxLanes - 1}));
}

}  // namespace
}  // namespace verbena::runtime
