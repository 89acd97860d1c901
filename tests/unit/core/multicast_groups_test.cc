// Membership of multicast groups. The class compares the addresses of queue pairs only.
#include "core/multicast_groups.h"

#include <gtest/gtest.h>

#include <memory>

#include "core/completion_queue.h"
#include "core/queue_pair.h"

namespace verbena::core {
namespace {

class MulticastGroupsTest : public testing::Test {
 public:
  static wire::Gid group(uint32_t number) {
    wire::Gid gid;
    gid.bytes[0] = std::byte{0xFF};
    gid.bytes[14] = static_cast<std::byte>(number >> 8);
    gid.bytes[15] = static_cast<std::byte>(number);
    return gid;
  }

  MemoryRegistry memory_{1};
  EngineState engine_{memory_, 1, true};
  CompletionQueue cq_{4};
  QpConfig config_{.type = QpType::Ud, .send_cq = &cq_, .receive_cq = &cq_};
  QueuePair a_{engine_, wire::Qpn::of_slot(1, 2), config_};
  QueuePair b_{engine_, wire::Qpn::of_slot(1, 3), config_};
  MulticastGroups groups_;
};

TEST_F(MulticastGroupsTest, GroupWithoutMembersDoesNotExist) {
  EXPECT_FALSE(groups_.has_members(group(1)));
  EXPECT_TRUE(groups_.members(group(1)).empty());
  ASSERT_TRUE(groups_.attach(a_, group(1)).ok());
  EXPECT_TRUE(groups_.has_members(group(1)));
  EXPECT_TRUE(groups_.detach(a_, group(1)));
  EXPECT_FALSE(groups_.has_members(group(1)));
}

TEST_F(MulticastGroupsTest, AttachingTwiceAddsOneMember) {
  ASSERT_TRUE(groups_.attach(a_, group(1)).ok());
  ASSERT_TRUE(groups_.attach(a_, group(1)).ok());
  EXPECT_EQ(groups_.members(group(1)).size(), 1u);
}

TEST_F(MulticastGroupsTest, RefusesToDetachAQueuePairThatIsNoMember) {
  EXPECT_FALSE(groups_.detach(a_, group(1)));
  ASSERT_TRUE(groups_.attach(b_, group(1)).ok());
  EXPECT_FALSE(groups_.detach(a_, group(1)));
  EXPECT_TRUE(groups_.has_members(group(1)));
}

TEST_F(MulticastGroupsTest, DetachesAQueuePairFromAllItsGroups) {
  for (const uint32_t number : {1u, 2u}) ASSERT_TRUE(groups_.attach(a_, group(number)).ok());
  ASSERT_TRUE(groups_.attach(b_, group(2)).ok());
  EXPECT_EQ(groups_.groups_of(a_).size(), 2u);
  groups_.detach_from_all(a_);
  EXPECT_TRUE(groups_.groups_of(a_).empty());
  EXPECT_FALSE(groups_.has_members(group(1)));
  ASSERT_EQ(groups_.members(group(2)).size(), 1u);
  EXPECT_EQ(groups_.members(group(2))[0], &b_);
}

TEST_F(MulticastGroupsTest, LimitsTheNumberOfGroups) {
  for (uint32_t i = 0; i < kMaxGroups; ++i) ASSERT_TRUE(groups_.attach(a_, group(i)).ok());
  const Status status = groups_.attach(a_, group(kMaxGroups));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ENOMEM);
  EXPECT_TRUE(groups_.attach(b_, group(0)).ok());
}

TEST_F(MulticastGroupsTest, LimitsTheMembersOfAGroup) {
  std::vector<std::unique_ptr<QueuePair>> others;
  for (uint32_t i = 0; i < kMaxQpsPerGroup; ++i) {
    others.push_back(std::make_unique<QueuePair>(engine_, wire::Qpn::of_slot(1, 4 + i), config_));
    ASSERT_TRUE(groups_.attach(*others.back(), group(1)).ok());
  }
  EXPECT_FALSE(groups_.attach(a_, group(1)).ok());
  EXPECT_TRUE(groups_.attach(*others[0], group(1)).ok());
}

}  // namespace
}  // namespace verbena::core
