// Executed READs and atomics: which are kept, which response is next, what a duplicate replays.
#include "core/responder_resources.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

using wire::Psn;
using wire::Verb;
using Resource = ResponderResources::Resource;

constexpr uint32_t kPayload = 256;
constexpr uint32_t kPd = 7;

class ResponderResourcesTest : public testing::Test {
 public:
  ResponderResourcesTest() { resources_.resize(2); }

  Resource& execute_atomic(uint32_t psn) {
    Resource& r = *resources_.take(Verb::FetchAdd, Psn(psn), kPd);
    r.packets = 1;
    resources_.start_response(r, 0, 1, false);
    return r;
  }
  Resource& execute_read(uint32_t psn, uint64_t address, uint32_t length) {
    Resource& r = *resources_.take(Verb::ReadRequest, Psn(psn), kPd);
    r.reth = {address, 1, length};
    r.packet_payload_bytes = kPayload;
    r.packets = read_response_packets(length, kPayload);
    resources_.start_response(r, 0, r.packets, false);
    return r;
  }
  bool replay_atomic(uint32_t psn) {
    wire::Packet p;
    p.op.verb = Verb::FetchAdd;
    p.bth.psn = Psn(psn);
    return resources_.replay(p, kPayload);
  }
  bool replay_read(uint32_t psn, uint64_t address, uint32_t length, uint32_t payload = kPayload) {
    wire::Packet p;
    p.op.verb = Verb::ReadRequest;
    p.bth.psn = Psn(psn);
    p.reth = {address, 1, length};
    return resources_.replay(p, payload);
  }

  ResponderResources resources_;
};

TEST_F(ResponderResourcesTest, CountsThePacketsOfAReadResponse) {
  EXPECT_EQ(read_response_packets(0, kPayload), 1u);
  EXPECT_EQ(read_response_packets(kPayload, kPayload), 1u);
  EXPECT_EQ(read_response_packets(kPayload + 1, kPayload), 2u);
}

TEST_F(ResponderResourcesTest, NoneIsFreeWhileAllResponsesArePending) {
  Resource& first = execute_atomic(10);
  execute_atomic(11);
  EXPECT_FALSE(resources_.has_free());
  EXPECT_EQ(resources_.take(Verb::FetchAdd, Psn(12), kPd), nullptr);
  resources_.end_response(first);
  EXPECT_TRUE(resources_.has_free());
}

TEST_F(ResponderResourcesTest, PendingReplayDoesNotBlockANewRequest) {
  resources_.end_response(execute_atomic(10));
  resources_.end_response(execute_atomic(11));
  ASSERT_TRUE(replay_atomic(10));
  ASSERT_NE(resources_.take(Verb::FetchAdd, Psn(12), kPd), nullptr);
  EXPECT_FALSE(resources_.has_pending());
}

TEST_F(ResponderResourcesTest, ResponsesArePendingInPsnOrder) {
  Resource& first = execute_atomic(0xFFFFFF);
  Resource& second = execute_atomic(0);
  EXPECT_EQ(resources_.next_pending(), &first);
  resources_.end_response(first);
  EXPECT_EQ(resources_.next_pending(), &second);
  resources_.end_response(second);
  EXPECT_EQ(resources_.next_pending(), nullptr);
}

TEST_F(ResponderResourcesTest, ForgetsTheOldestRequest) {
  for (uint32_t psn = 10; psn < 13; ++psn) resources_.end_response(execute_atomic(psn));
  EXPECT_FALSE(replay_atomic(10));
  EXPECT_TRUE(replay_atomic(11));
  EXPECT_TRUE(replay_atomic(12));
}

TEST_F(ResponderResourcesTest, ReplaysTheEndOfARead) {
  Resource& r = execute_read(10, 0x1000, 3 * kPayload);
  resources_.end_response(r);
  ASSERT_TRUE(replay_read(11, 0x1000 + kPayload, 2 * kPayload));
  EXPECT_TRUE(r.is_replay);
  EXPECT_EQ(r.next_packet, 1u);
  EXPECT_EQ(r.end_packet, 3u);
}

TEST_F(ResponderResourcesTest, RefusesADuplicateReadOfAnotherRange) {
  resources_.end_response(execute_read(10, 0x1000, 3 * kPayload));
  EXPECT_FALSE(replay_read(11, 0x1000, 2 * kPayload));
  EXPECT_FALSE(replay_read(11, 0x1000 + kPayload, 3 * kPayload));
  EXPECT_FALSE(replay_read(11, 0x1000 + kPayload, kPayload + 1));
  EXPECT_FALSE(resources_.has_pending());
}

TEST_F(ResponderResourcesTest, PacketSizeOfADuplicateMattersOnlyBeyondOnePacket) {
  resources_.end_response(execute_read(10, 0x1000, 3 * kPayload));
  EXPECT_FALSE(replay_read(10, 0x1000, 3 * kPayload, 4 * kPayload));
  resources_.end_response(execute_read(13, 0x1000, 8));
  EXPECT_TRUE(replay_read(13, 0x1000, 8, 4 * kPayload));
}

TEST_F(ResponderResourcesTest, SendsBothPartsIfAPendingReadIsRequestedAgain) {
  Resource& r = execute_read(10, 0x1000, 4 * kPayload);
  r.next_packet = 2;
  ASSERT_TRUE(replay_read(11, 0x1000 + kPayload, kPayload));
  EXPECT_EQ(r.next_packet, 1u);
  EXPECT_EQ(r.end_packet, 4u);
}

TEST_F(ResponderResourcesTest, ResizeKeepsTheNewestAndTheirPendingResponses) {
  resources_.end_response(execute_atomic(10));
  execute_atomic(11);
  resources_.resize(1);
  EXPECT_TRUE(resources_.has_pending());
  EXPECT_FALSE(resources_.has_free());
  EXPECT_EQ(resources_.next_pending()->first, Psn(11));
  resources_.resize(3);
  EXPECT_TRUE(resources_.has_free());
  EXPECT_FALSE(replay_atomic(10));
  EXPECT_TRUE(replay_atomic(11));
}

TEST_F(ResponderResourcesTest, DroppedResponsesCanStillBeReplayed) {
  execute_atomic(10);
  resources_.drop_responses();
  EXPECT_FALSE(resources_.has_pending());
  EXPECT_TRUE(replay_atomic(10));
}

TEST_F(ResponderResourcesTest, ForgetsAllRequestsOfAnEarlierConnection) {
  execute_atomic(10);
  resources_.forget_all();
  EXPECT_FALSE(resources_.has_pending());
  EXPECT_FALSE(replay_atomic(10));
  EXPECT_TRUE(resources_.has_free());
}

}  // namespace
}  // namespace verbena::core
