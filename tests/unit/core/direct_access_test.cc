// One-sided access by a requester: when it is chosen, its parameters, and which packets are
// retracted.
#include "core/direct_access.h"

#include <vector>

#include "tests/unit/core/requester_parts_support.h"
#include "wire/local_peer.h"
#include "wire/one_sided.h"

namespace verbena::core {
namespace {

// A path through shared memory whose peer does what the test says.
class FakeLocalPeer : public wire::PacketSink, public wire::LocalPeer {
 public:
  FakeLocalPeer() : PacketSink(this) {}
  size_t room() const override { return 16; }
  void push(const wire::TxPacket&) override { ADD_FAILURE() << "a packet was sent"; }
  bool is_full(wire::PathId) const override { return false; }
  bool is_asleep(wire::PathId) const override { return asleep; }
  bool send_short_ack(wire::PathId, const wire::Ack&) override { return false; }
  bool access(const wire::OneSided& request) override {
    accesses.push_back(request);
    return grants;
  }
  bool retract(const wire::Unread& requests) override {
    retracted.push_back(requests);
    return grants;
  }

  bool asleep = true;
  bool grants = true;
  std::vector<wire::OneSided> accesses;
  std::vector<wire::Unread> retracted;
};

// A path that leaves the host.
class WireSink : public wire::PacketSink {
 public:
  size_t room() const override { return 16; }
  void push(const wire::TxPacket&) override {}
};

class DirectAccessTest : public RequesterPartTest {
 public:
  using Outcome = DirectAccess::Outcome;
  DirectAccess direct_{qp_, cursor_};
  FakeLocalPeer sink_;
};

TEST_F(DirectAccessTest, IsPossibleForWriteAndReadAtTheHead) {
  for (const SendOp op : {SendOp::Write, SendOp::Read}) {
    post(op, 100);
    EXPECT_TRUE(direct_.is_possible());
    cursor_.skip_request();
    cursor_.queue().pop();
  }
  for (const SendOp op : {SendOp::Send, SendOp::WriteImm, SendOp::FetchAdd}) {
    post(op, 8);
    EXPECT_FALSE(direct_.is_possible());
    cursor_.skip_request();
    cursor_.queue().pop();
  }
}

TEST_F(DirectAccessTest, IsNotPossibleBehindAnOutstandingRequest) {
  post(SendOp::Send, 8);
  post(SendOp::Write, 8);
  advance();
  EXPECT_FALSE(direct_.is_possible());
}

TEST_F(DirectAccessTest, IsNotPossibleForARequestThatHasPsns) {
  post(SendOp::Write, 2 * kPayload);
  advance();
  EXPECT_FALSE(direct_.is_possible());
}

TEST_F(DirectAccessTest, IsNotPossibleWithoutBytesOrForXrc) {
  post(SendOp::Write, 0);
  EXPECT_FALSE(direct_.is_possible());
  cursor_.skip_request();
  cursor_.queue().pop();
  post(SendOp::Write, 8);
  qp_.config.type = QpType::XrcSend;
  EXPECT_FALSE(direct_.is_possible());
}

TEST_F(DirectAccessTest, IsPreferredIfThePeerSleeps) {
  post(SendOp::Write, 8);
  EXPECT_TRUE(direct_.is_preferred(sink_, kStart));
  sink_.asleep = false;
  EXPECT_FALSE(direct_.is_preferred(sink_, kStart));
}

TEST_F(DirectAccessTest, IsNotPreferredForAStream) {
  post(SendOp::Write, 8);
  for (uint32_t i = 0; i < DirectAccess::kMaxInARow; ++i) {
    EXPECT_TRUE(direct_.is_preferred(sink_, kStart)) << i;
  }
  EXPECT_FALSE(direct_.is_preferred(sink_, kStart));
  const Instant after_a_pause = at(DirectAccess::kPause + nanoseconds(1));
  EXPECT_TRUE(direct_.is_preferred(sink_, after_a_pause));
}

TEST_F(DirectAccessTest, IsNotPreferredIfMoreRequestsAreQueued) {
  post(SendOp::Write, 8);
  post(SendOp::Write, 8);
  EXPECT_FALSE(direct_.is_preferred(sink_, kStart));
}

TEST_F(DirectAccessTest, IsPreferredIfThePeerIsUnresponsive) {
  sink_.asleep = false;
  post(SendOp::Write, 8);
  post(SendOp::Write, 8);
  path_.unresponsive_until = at(milliseconds(1));
  EXPECT_TRUE(direct_.is_preferred(sink_, kStart));
  EXPECT_TRUE(direct_.is_likely(sink_, kStart));
  EXPECT_FALSE(direct_.is_likely(sink_, at(milliseconds(1))));
}

TEST_F(DirectAccessTest, NamesTheRequestAndItsMemory) {
  post(SendOp::Read, 100);
  ASSERT_EQ(direct_.access(sink_), Outcome::Done);
  ASSERT_EQ(sink_.accesses.size(), 1u);
  const wire::OneSided& access = sink_.accesses[0];
  EXPECT_FALSE(access.write);
  EXPECT_TRUE(access.ends_message);
  EXPECT_EQ(access.access, kRemoteRead);
  EXPECT_EQ(access.source, qp_.qpn);
  EXPECT_EQ(access.destination, qp_.attr.dest_qpn);
  EXPECT_EQ(access.bytes, 100u);
  EXPECT_EQ(counter(CounterId::one_sided_reads), 1u);
}

TEST_F(DirectAccessTest, DoesALongRequestInParts) {
  post(SendOp::Write, 2 * wire::kMaxPayloadBytes + 1);
  EXPECT_EQ(direct_.access(sink_), Outcome::Partial);
  EXPECT_TRUE(direct_.is_begun());
  EXPECT_EQ(direct_.access(sink_), Outcome::Partial);
  EXPECT_EQ(counter(CounterId::one_sided_writes), 0u);
  EXPECT_EQ(direct_.access(sink_), Outcome::Done);
  EXPECT_FALSE(direct_.is_begun());
  ASSERT_EQ(sink_.accesses.size(), 3u);
  EXPECT_EQ(sink_.accesses[1].offset, wire::kMaxPayloadBytes);
  EXPECT_FALSE(sink_.accesses[1].ends_message);
  EXPECT_EQ(sink_.accesses[2].bytes, 1u);
  EXPECT_TRUE(sink_.accesses[2].ends_message);
  EXPECT_EQ(counter(CounterId::one_sided_writes), 1u);
}

TEST_F(DirectAccessTest, ARefusedRequestIsNotRetried) {
  post(SendOp::Write, 8);
  sink_.grants = false;
  EXPECT_EQ(direct_.access(sink_), Outcome::Refused);
  EXPECT_FALSE(direct_.is_possible());
  cursor_.skip_request();
  cursor_.queue().pop();
  post(SendOp::Write, 8);
  EXPECT_TRUE(direct_.is_possible());
}

TEST_F(DirectAccessTest, AReadNeedsWritableLocalMemory) {
  const uint32_t read_only = registry_.add_region(kPd, memory_.data(), 64, kIova, 0).value();
  key_ = read_only;
  post(SendOp::Read, 8);
  EXPECT_EQ(direct_.access(sink_), Outcome::Refused);
  EXPECT_TRUE(sink_.accesses.empty());
}

TEST_F(DirectAccessTest, RefusesOnAPathThatLeavesTheHost) {
  WireSink wire;
  post(SendOp::Write, 8);
  EXPECT_FALSE(direct_.is_preferred(wire, kStart));
  EXPECT_EQ(direct_.access(wire), Outcome::Refused);
}

TEST_F(DirectAccessTest, RetractsAllOutstandingPackets) {
  post(SendOp::Write, 3 * kPayload);
  post(SendOp::Read, 4 * kPayload);
  post(SendOp::Send, 2 * kPayload);
  for (int i = 0; i < 5; ++i) advance();  // one of the last message is not sent
  EXPECT_TRUE(direct_.retract(sink_, kStart));
  ASSERT_EQ(sink_.retracted.size(), 1u);
  EXPECT_EQ(sink_.retracted[0].first, psn(0));
  EXPECT_EQ(sink_.retracted[0].packets, 5u);
  EXPECT_TRUE(path_.is_unresponsive(kStart));
  EXPECT_FALSE(path_.is_unresponsive(at(DirectAccess::kUnresponsiveFor)));
}

TEST_F(DirectAccessTest, RetractsNothingIfTheFirstRequestNeedsThePeer) {
  post(SendOp::Send, 8);
  advance();
  EXPECT_FALSE(direct_.retract(sink_, kStart));
  EXPECT_TRUE(sink_.retracted.empty());
  EXPECT_TRUE(path_.is_unresponsive(kStart));
}

TEST_F(DirectAccessTest, RetractsNothingIfTheFirstRequestIsPartlyAcknowledged) {
  post(SendOp::Write, 3 * kPayload);
  for (int i = 0; i < 3; ++i) advance();
  cursor_.acknowledge(1);
  EXPECT_FALSE(direct_.retract(sink_, kStart));
  EXPECT_TRUE(sink_.retracted.empty());
}

}  // namespace
}  // namespace verbena::core
