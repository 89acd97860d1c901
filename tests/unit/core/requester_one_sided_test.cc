// WRITEs and READs by one-sided access (a copy without packets): when, in which order, and the
// fallback to packets. The peer's memory is an array here.
#include "wire/one_sided.h"

#include <algorithm>
#include <cstring>

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;

constexpr uint64_t kRemote = 0x7000;  // the remote address of EngineTest's requests

class OneSidedSink final : public RecordingSink {
 public:
  OneSidedSink() : RecordingSink(10000) {}
  bool is_asleep(wire::PathId) const override { return asleep; }
  bool access(const wire::OneSided& r) override {
    if (denied_from <= r.offset) return false;
    EXPECT_EQ(r.remote_address, kRemote);
    EXPECT_EQ(r.access, r.write ? kRemoteWrite : kRemoteRead);
    EXPECT_EQ(r.ends_message, r.offset + r.bytes == r.length);
    std::byte* at = peer.data() + r.offset;
    for (const auto& part : r.local) {
      if (r.write) {
        std::memcpy(at, part.data(), part.size());
      } else {
        std::memcpy(const_cast<std::byte*>(part.data()), at, part.size());
      }
      at += part.size();
    }
    ++copies;
    return true;
  }

  bool is_full(wire::PathId) const override { return path_full; }
  bool retract(const wire::Unread& r) override {
    retractions.push_back(r);
    return can_retract;
  }

  bool asleep = true;
  bool path_full = false;
  bool can_retract = true;
  std::vector<wire::Unread> retractions;
  uint32_t denied_from = UINT32_MAX;
  int copies = 0;
  Bytes peer = Bytes(128 * 1024);
};

class OneSidedTest : public EngineTest {
 public:
  std::vector<Opcode> turn() {
    sink_.sent.clear();
    engine_.poll_transmit(sink_, now_);
    std::vector<Opcode> sent;
    for (const Sent& s : sink_.sent) sent.push_back(s.opcode());
    return sent;
  }
  OneSidedSink sink_;
};

const Completed kFirstSucceeded{{1, WcStatus::Success}};

TEST_F(OneSidedTest, SingleWriteToASleepingPeerNeedsNoPacket) {
  connect();
  const Bytes data = pattern(300);
  std::ranges::copy(data, memory_.begin());
  ASSERT_TRUE(post(SendOp::Write, 1, 300).ok());
  EXPECT_TRUE(turn().empty());
  EXPECT_EQ(completions(), kFirstSucceeded);
  EXPECT_TRUE(std::ranges::equal(data, std::span(sink_.peer).first(300)));
  EXPECT_EQ(counter(CounterId::one_sided_writes), 1u);
  EXPECT_EQ(engine_.next_deadline(), kNever) << "no response is expected";
  // The peer's responder has received no packet: the next one has the first PSN.
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  EXPECT_EQ(turn(), std::vector{Opcode::RcSendOnly});
  EXPECT_EQ(sink_.sent.front().psn(), 100u);
}

TEST_F(OneSidedTest, ReadCopiesTheDataAndReportsItsLength) {
  connect();
  sink_.peer = pattern(128 * 1024, 9);
  ASSERT_TRUE(post(SendOp::Read, 1, 5000, kSignaled, 64).ok());
  EXPECT_TRUE(turn().empty());
  const auto done = poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].opcode, WcOpcode::Read);
  EXPECT_EQ(done[0].byte_count, 5000u);
  EXPECT_TRUE(
      std::ranges::equal(std::span(memory_).subspan(64, 5000), std::span(sink_.peer).first(5000)));
}

TEST_F(OneSidedTest, UnsignaledRequestGetsNoCompletion) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8, 0).ok());
  EXPECT_TRUE(turn().empty());
  EXPECT_TRUE(completions().empty());
  EXPECT_EQ(sink_.copies, 1);
}

TEST_F(OneSidedTest, OtherOperationsUsePackets) {
  connect();
  for (const SendOp op : {SendOp::Send, SendOp::WriteImm, SendOp::FetchAdd, SendOp::AtomicWrite}) {
    ASSERT_TRUE(post(op, 1, 8).ok());
    EXPECT_EQ(turn().size(), 1u);
  }
  EXPECT_EQ(sink_.copies, 0);
}

TEST_F(OneSidedTest, UsesPacketsToAPeerThatIsAwake) {
  connect();
  sink_.asleep = false;
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  EXPECT_EQ(turn(), std::vector{Opcode::RcWriteOnly});
}

TEST_F(OneSidedTest, DoesNotOvertakeOutstandingRequests) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  EXPECT_EQ(turn(), std::vector{Opcode::RcSendOnly});
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  EXPECT_EQ(turn(), std::vector{Opcode::RcWriteOnly});
  receive_ack(101);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
  ASSERT_TRUE(post(SendOp::Write, 3, 8).ok());
  EXPECT_TRUE(turn().empty());
  EXPECT_EQ(completions(), (Completed{{3, WcStatus::Success}}));
}

TEST_F(OneSidedTest, UsesPacketsIfAccessIsDenied) {
  connect();
  sink_.denied_from = 0;
  ASSERT_TRUE(post(SendOp::Write, 1, 300).ok());
  EXPECT_EQ(turn(), (std::vector{Opcode::RcWriteFirst, Opcode::RcWriteLast}));
  receive_ack(101);
  EXPECT_EQ(completions(), kFirstSucceeded);
}

TEST_F(OneSidedTest, LongWriteIsCopiedInPartsAndRestartsByPacketsIfOneIsDenied) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 100'000).ok());
  EXPECT_TRUE(turn().empty());
  EXPECT_EQ(sink_.copies, 2);
  EXPECT_EQ(completions(), kFirstSucceeded);
  sink_.denied_from = 65536;
  ASSERT_TRUE(post(SendOp::Write, 2, 66'000).ok());
  const auto sent = turn();
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent.front(), Opcode::RcWriteFirst);
  EXPECT_EQ(sink_.sent.front().packet.reth.length, 66'000u);
  EXPECT_EQ(sink_.copies, 3);
}

TEST_F(OneSidedTest, StreamOfWritesUsesPackets) {
  connect({.depth = 64});
  uint32_t without = 0;
  for (; without < 40; ++without) {
    ASSERT_TRUE(post(SendOp::Write, without, 8).ok());
    if (!turn().empty()) break;
  }
  EXPECT_GT(without, 1u);
  EXPECT_LT(without, 40u);
  receive_ack(100);
  completions();  // a program that polls each completion does not stream
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
    EXPECT_TRUE(turn().empty());
    EXPECT_EQ(completions().size(), 1u);
  }
}

TEST_F(OneSidedTest, SeveralPostedRequestsUsePackets) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  EXPECT_EQ(turn(), (std::vector{Opcode::RcWriteOnly, Opcode::RcWriteOnly}));
}

TEST_F(OneSidedTest, InvalidLocalMemoryFailsWithLocalProtectionError) {
  connect();
  ASSERT_TRUE(post(SendOp::Write, 1, 8, kSignaled, kRegionBytes).ok());
  EXPECT_TRUE(turn().empty());
  EXPECT_EQ(sink_.copies, 0);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::LocalProtection}}));
}

// --- a peer that reads no packets ---------------------------------------------------------------

class UnresponsivePeerTest : public OneSidedTest {
 public:
  UnresponsivePeerTest() { sink_.asleep = false; }
  void connect_in_memory(uint8_t retry_count = 7) {
    connect({.retry_count = retry_count, .depth = 64, .path_packet_bytes = 65536});
  }
  std::vector<Opcode> wait() {
    EXPECT_TRUE(next_deadline());
    return turn();
  }
};

TEST_F(UnresponsivePeerTest, UnreadRequestsAreRetractedAndExecutedByDirectCopies) {
  connect_in_memory();
  sink_.peer = pattern(128 * 1024, 5);
  ASSERT_TRUE(post(SendOp::Write, 1, 300).ok());
  ASSERT_TRUE(post(SendOp::Write, 2, 100'000).ok());
  ASSERT_TRUE(post(SendOp::Read, 3, 100'000).ok());
  EXPECT_EQ(turn(), (std::vector{Opcode::RcWriteOnly, Opcode::RcWriteFirst, Opcode::RcWriteLast,
                                 Opcode::RcReadRequest, Opcode::RcReadRequest}));
  EXPECT_TRUE(wait().empty());
  ASSERT_EQ(sink_.retractions.size(), 1u);
  EXPECT_EQ(sink_.retractions[0].destination, kPeerQpn);
  EXPECT_EQ(sink_.retractions[0].first.value(), 100u);
  EXPECT_EQ(sink_.retractions[0].packets, 5u);
  EXPECT_EQ(completions(),
            (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}, {3, WcStatus::Success}}));
  EXPECT_TRUE(engine_.peer_idle(qp()));
  // While the peer is unresponsive, no WRITE is sent as packets.
  for (uint64_t i = 10; i < 50; ++i) ASSERT_TRUE(post(SendOp::Write, i, 8).ok());
  EXPECT_TRUE(turn().empty());
  EXPECT_EQ(completions().size(), 40u);
  ASSERT_TRUE(post(SendOp::Send, 4, 8).ok());
  EXPECT_EQ(turn(), std::vector{Opcode::RcSendOnly});
  EXPECT_EQ(sink_.sent.front().psn(), 100u);
}

TEST_F(UnresponsivePeerTest, AResponseEndsTheUnresponsiveState) {
  connect_in_memory();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  turn();
  EXPECT_TRUE(wait().empty());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  turn();
  receive_ack(100);
  ASSERT_TRUE(post(SendOp::Write, 3, 8).ok());
  EXPECT_EQ(turn(), std::vector{Opcode::RcWriteOnly});
}

TEST_F(UnresponsivePeerTest, TheUnresponsiveStateExpires) {
  connect_in_memory();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  turn();
  EXPECT_TRUE(wait().empty());
  now_ = now_ + seconds(1);
  ASSERT_TRUE(post(SendOp::Write, 2, 8).ok());
  EXPECT_EQ(turn(), std::vector{Opcode::RcWriteOnly});
}

TEST_F(UnresponsivePeerTest, RetractedSendIsSentAgainAndIsNotOvertaken) {
  connect_in_memory();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  ASSERT_TRUE(post(SendOp::Write, 3, 8).ok());
  turn();
  EXPECT_EQ(wait(), (std::vector{Opcode::RcSendOnly, Opcode::RcWriteOnly}));
  EXPECT_EQ(sink_.sent.front().psn(), 100u);
  EXPECT_EQ(completions(), kFirstSucceeded);
  wait();
  EXPECT_EQ(sink_.retractions.size(), 1u) << "a SEND is not retracted";
  receive_ack(101);
  EXPECT_EQ(completions(), (Completed{{2, WcStatus::Success}, {3, WcStatus::Success}}));
}

TEST_F(UnresponsivePeerTest, PartlyReadMessageIsNotRetracted) {
  connect_in_memory();
  ASSERT_TRUE(post(SendOp::Write, 1, 100'000).ok());
  EXPECT_EQ(turn().size(), 2u);
  receive_ack(100);
  wait();
  EXPECT_TRUE(sink_.retractions.empty());
  receive_ack(101);
  EXPECT_EQ(completions(), kFirstSucceeded);
}

TEST_F(UnresponsivePeerTest, WaitsForPacketsThatCannotBeRetracted) {
  connect_in_memory();
  sink_.can_retract = false;
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  turn();
  EXPECT_TRUE(wait().empty());
  EXPECT_EQ(sink_.retractions.size(), 1u);
  EXPECT_EQ(sink_.copies, 0);
  receive_ack(100);
  EXPECT_EQ(completions(), kFirstSucceeded);
}

TEST_F(UnresponsivePeerTest, RequestWithoutAccessExhaustsItsRetries) {
  connect_in_memory(2);
  sink_.denied_from = 0;
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  turn();
  for (int i = 0; i < 50 && cq_.empty(); ++i) wait();
  EXPECT_EQ(sink_.retractions.size(), 1u);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::RetryExceeded}}));
}

TEST_F(UnresponsivePeerTest, FullPathDoesNotDelayDirectCopies) {
  connect_in_memory();
  ASSERT_TRUE(post(SendOp::Write, 1, 8).ok());
  turn();
  sink_.path_full = true;
  EXPECT_TRUE(wait().empty());
  EXPECT_EQ(completions(), kFirstSucceeded);
  ASSERT_TRUE(post(SendOp::Read, 1, 100'000).ok());
  EXPECT_TRUE(wait().empty());
  EXPECT_EQ(completions(), kFirstSucceeded);
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  EXPECT_TRUE(wait().empty());
  EXPECT_TRUE(completions().empty());
}

}  // namespace
}  // namespace verbena::core
