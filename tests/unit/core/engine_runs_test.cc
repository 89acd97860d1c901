// Runs of packets in the middle of a message: an engine that handles them as runs and one that
// handles each packet by itself get the same batches, and must show the same results.
#include <algorithm>
#include <array>
#include <tuple>

#include "base/prng.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;

constexpr uint32_t kRunMtuBytes = 256;

struct RunPacket {
  wire::Packet packet;
  Bytes payload;
};

class RunSide : public EngineTest {
 public:
  explicit RunSide(bool with_runs) : EngineTest(true, with_runs) {}
  void TestBody() override {}

  void take(std::span<const RunPacket> incoming) {
    const wire::RxMeta meta{.source = peer_gid_, .destination = our_gid_};
    std::vector<Bytes> stored;
    for (const RunPacket& in : incoming) {
      Bytes& bytes = stored.emplace_back(wire::kMaxHeaderBytes);
      bytes.resize(wire::store_headers(in.packet, bytes.data()));
      bytes.insert(bytes.end(), in.payload.begin(), in.payload.end());
    }
    std::vector<wire::RxPacket> packets;
    for (const Bytes& bytes : stored) packets.push_back({.bytes = bytes, .meta = &meta});
    const Engine::Arrivals a = engine_.on_packets(packets, now_);
    reported_ = {a.messages, a.receives, a.responses_due, a.responses};
  }

  auto observe() {
    std::vector<Bytes> sent;
    for (Sent& s : transmit()) sent.push_back(std::move(s.bytes));
    const QpAttributes a = qp_->query();
    return std::tuple(sent, reported_, completions(), events(), engine_.state().counters.values,
                      a.rq_psn, a.sq_psn, a.state, qp_->peer()->in_flight(), qp_->peer()->window(),
                      engine_.next_deadline(), Bytes(memory_.begin(), memory_.end()));
  }

 private:
  std::array<bool, 4> reported_{};
};

class RunHistory {
 public:
  explicit RunHistory(uint64_t seed) : prng_(seed) {}

  void run() {
    TestShape shape;
    shape.rq_psn = chance(2) ? 0xFFFFF0 : 500;
    both([&](RunSide& s) { s.connect(shape); });
    psn_ = shape.rq_psn;
    for (int message = 0; message < 12 && with_.qp().state() == QpState::Rts; ++message) {
      switch (prng_.below(3)) {
        case 0:
          peer_sends(Opcode::RcSendFirst, Opcode::RcSendMiddle, Opcode::RcSendLast);
          break;
        case 1:
          peer_sends(Opcode::RcWriteFirst, Opcode::RcWriteMiddle, Opcode::RcWriteLast);
          break;
        default:
          read();
          break;
      }
      ASSERT_FALSE(testing::Test::HasFailure()) << "message " << message;
    }
  }

 private:
  bool chance(uint32_t one_in) { return prng_.below(one_in) == 0; }
  template <typename Do>
  void both(Do act) {
    act(with_);
    act(without_);
  }

  RunPacket incoming(Opcode opcode, uint32_t psn) {
    RunPacket in{with_.request(opcode, psn & 0xFFFFFF),
                 pattern(kRunMtuBytes, static_cast<uint8_t>(prng_.next()))};
    in.packet.bth.ack_request = chance(8);
    return in;
  }

  void peer_sends(Opcode first, Opcode middle, Opcode last) {
    const auto count = 3 + static_cast<uint32_t>(prng_.below(40));
    std::vector<RunPacket> message;
    for (uint32_t i = 0; i < count; ++i) {
      RunPacket& in = message.emplace_back(incoming(i == 0          ? first
                                                    : i + 1 < count ? middle
                                                                    : last,
                                                    psn_ + i));
      in.packet.reth.address += 64;
      in.packet.reth.length = count * kRunMtuBytes + (chance(30) ? 256 : 0);
      in.packet.bth.extension_flags = with_sack_ ? with_.peer_flags().sack : 0;
    }
    psn_ += count;
    if (chance(8)) with_sack_ = !with_sack_;
    const uint32_t buffer = chance(12) ? kRunMtuBytes * (count / 2) : count * kRunMtuBytes;
    both([&](RunSide& s) { ASSERT_TRUE(s.post_receive(7, buffer, 1000).ok()); });
    deliver(std::move(message));
  }

  void read() {
    const auto count = 3 + static_cast<uint32_t>(prng_.below(40));
    const uint32_t sq_psn = with_.qp().query().sq_psn;
    both([&](RunSide& s) {
      ASSERT_TRUE(s.post(SendOp::Read, 9, count * kRunMtuBytes, kSignaled, 2000).ok());
      s.transmit();
    });
    std::vector<RunPacket> response;
    for (uint32_t i = 0; i < count; ++i) {
      response.push_back(incoming(i == 0          ? Opcode::RcReadResponseFirst
                                  : i + 1 < count ? Opcode::RcReadResponseMiddle
                                                  : Opcode::RcReadResponseLast,
                                  sq_psn + i));
      response.back().packet.aeth = {wire::AckKind::Ack, wire::kUnlimitedCredits, 0};
    }
    deliver(std::move(response));
  }

  void damage(std::vector<RunPacket>& packets) {
    const size_t at = prng_.below(packets.size());
    switch (prng_.below(8)) {
      case 0:
        packets.erase(packets.begin() + static_cast<ptrdiff_t>(at));
        break;
      case 1:
        packets.insert(packets.begin() + static_cast<ptrdiff_t>(at), RunPacket(packets[at]));
        break;
      case 2:
        std::swap(packets[at], packets[prng_.below(packets.size())]);
        break;
      case 3:
        packets[at].payload.resize(kRunMtuBytes - 4);
        break;
      case 4:
        packets[at].packet.bth.pkey = 1;
        break;
      case 5:
        packets[at].packet.bth.extension_flags = with_.peer_flags().reordered;
        break;
      case 6: {  // buffered before the others are received, and then received again
        RunPacket early = packets[at];
        early.packet.bth.extension_flags = with_.peer_flags().reordered;
        const size_t before = 1 + prng_.below(at + 1);
        packets.insert(packets.begin() + static_cast<ptrdiff_t>(std::min(before, at)), early);
        break;
      }
      default: {
        RunPacket ack{with_.request(Opcode::RcAck, with_.qp().query().sq_psn - 1), {}};
        ack.packet.aeth = {wire::AckKind::Ack, wire::kUnlimitedCredits, 0};
        packets.insert(packets.begin() + static_cast<ptrdiff_t>(at), ack);
        break;
      }
    }
  }

  // In batches of random length. Now and then the key is withdrawn between two of them.
  void deliver(std::vector<RunPacket> packets) {
    if (chance(3)) damage(packets);
    for (size_t at = 0; at < packets.size();) {
      const size_t n = std::min<size_t>(packets.size() - at, 1 + prng_.below(48));
      both([&](RunSide& s) { s.take(std::span(packets).subspan(at, n)); });
      at += n;
      ASSERT_EQ(with_.observe(), without_.observe());
      if (!key_withdrawn_ && chance(100)) {
        key_withdrawn_ = true;
        both([](RunSide& s) { ASSERT_TRUE(s.engine_.memory().remove_region(s.key_).ok()); });
      }
    }
    both([](RunSide& s) { s.next_deadline(); });
    ASSERT_EQ(with_.observe(), without_.observe());
  }

  Prng prng_;
  RunSide with_{true};
  RunSide without_{false};
  bool with_sack_ = true;
  bool key_withdrawn_ = false;
  uint32_t psn_ = 0;
};

TEST(PacketRuns, AreHandledAsTheirPacketsOneByOne) {
  for (uint64_t seed = 1; seed <= 1500 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto history = std::make_unique<RunHistory>(seed);
    history->run();
  }
}

// Memory that counts how often it is looked up.
class LookedUpRunTest : public EngineTest {
 public:
  static inline int lookups = 0;

  // The number of lookups for `count` packets in the middle of a WRITE.
  int lookups_for(uint32_t count, QpState state) {
    TestShape shape;
    shape.state = state;
    connect(shape);
    key_ = engine_.memory().add_region(counted_region()).value();
    wire::Packet first = request(Opcode::RcWriteFirst, 500);
    first.reth.length = (count + 2) * kRunMtuBytes;
    receive(first, pattern(kRunMtuBytes));
    std::vector<Bytes> stored;
    for (uint32_t i = 1; i <= count; ++i) {
      Bytes& bytes = stored.emplace_back(wire::kMaxHeaderBytes);
      bytes.resize(wire::store_headers(request(Opcode::RcWriteMiddle, 500 + i), bytes.data()));
      bytes.resize(bytes.size() + kRunMtuBytes);
    }
    const wire::RxMeta meta{.source = peer_gid_, .destination = our_gid_};
    std::vector<wire::RxPacket> batch;
    for (const Bytes& bytes : stored) batch.push_back({.bytes = bytes, .meta = &meta});
    lookups = 0;
    engine_.on_packets(batch, now_);
    EXPECT_EQ(qp_->query().rq_psn, 500 + count + 1);
    return lookups;
  }

 private:
  RegionInfo counted_region() {
    static constexpr MemoryBacking kBacking{.reachable = [](const std::byte*, uint64_t, bool) {
      ++lookups;
      return true;
    }};
    return {kPd, memory_.data(), memory_.size(), kIova, kLocalWrite | kRemoteWrite, &kBacking};
  }
};

TEST_F(LookedUpRunTest, TheMemoryOfARunIsLookedUpOnce) {
  EXPECT_EQ(lookups_for(40, QpState::Rts), 1);
}

// A queue pair that only receives may stay in RTR.
TEST_F(LookedUpRunTest, TheMemoryOfARunIsLookedUpOnceInRtr) {
  EXPECT_EQ(lookups_for(40, QpState::Rtr), 1);
}

// Counts runs, and records their packets one by one.
class RunSink final : public RecordingSink {
 public:
  explicit RunSink(size_t room) : RecordingSink(room) {}
  void push_run(const wire::TxRun& run) override {
    runs.push_back(run.count);
    PacketSink::push_run(run);
  }
  std::vector<uint32_t> runs;
};

class SentRunsTest : public EngineTest {
 public:
  RunSink send(size_t room) {
    RunSink sink(room);
    engine_.poll_transmit(sink, now_);
    return sink;
  }
};

TEST_F(SentRunsTest, TheMiddleOfAMessageLeavesAsOneRun) {
  connect();
  std::ranges::copy(pattern(20 * kRunMtuBytes), memory_.begin());
  ASSERT_TRUE(post(SendOp::Write, 1, 20 * kRunMtuBytes).ok());
  const RunSink sink = send(100);
  EXPECT_EQ(sink.runs, (std::vector<uint32_t>{18}));
  ASSERT_EQ(sink.sent.size(), 20u);
  for (uint32_t i = 0; i < 20; ++i) {
    const Sent& s = sink.sent[i];
    EXPECT_EQ(s.psn(), 100 + i);
    EXPECT_TRUE(std::equal(s.packet.payload.begin(), s.packet.payload.end(),
                           memory_.begin() + i * kRunMtuBytes));
    EXPECT_EQ(s.packet.bth.ack_request, i % 8 == 7 || i == 19) << i;
  }
}

TEST_F(SentRunsTest, ARunEndsBeforeTheSinkIsFull) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 20 * kRunMtuBytes).ok());
  const RunSink sink = send(10);
  EXPECT_EQ(sink.sent.size(), 10u);
  ASSERT_EQ(sink.runs.size(), 1u);
  EXPECT_LE(sink.runs[0], 9u);
}

TEST_F(SentRunsTest, ARunEndsWithTheWindow) {
  connect();
  const uint32_t cost = kRunMtuBytes + PeerPath::kPacketOverhead;
  const uint32_t packets = (qp_->peer()->window() - 1) / cost + 1;
  ASSERT_LT(packets, kRegionBytes / kRunMtuBytes);
  ASSERT_TRUE(post(SendOp::Write, 1, kRegionBytes).ok());
  const RunSink sink = send(10000);
  EXPECT_EQ(sink.sent.size(), packets);
  EXPECT_TRUE(sink.sent.back().packet.bth.ack_request) << "only an ACK opens the window again";
  EXPECT_FALSE(sink.sent[sink.sent.size() - 2].packet.bth.ack_request);
}

TEST_F(SentRunsTest, ARateLimitHoldsForEachPacket) {
  connect();
  engine_.set_rate_limit(*qp_, 1000, 0, now_);
  ASSERT_TRUE(post(SendOp::Write, 1, 20 * kRunMtuBytes).ok());
  EXPECT_TRUE(send(100).runs.empty());
}

TEST_F(SentRunsTest, PayloadInSeveralAreasLeavesInSeveralRuns) {
  connect();
  const Sge sges[] = {{kIova, 10 * kRunMtuBytes + 3, key_},
                      {kIova + 65536, 10 * kRunMtuBytes, key_}};
  SendRequest r;
  r.op = SendOp::Send;
  r.sges = sges;
  ASSERT_TRUE(engine_.post_send(*qp_, r, now_).ok());
  const RunSink sink = send(100);
  EXPECT_EQ(sink.runs, (std::vector<uint32_t>{9, 9}));
  EXPECT_EQ(sink.sent.size(), 21u);
}

TEST_F(SentRunsTest, ReadResponsesLeaveAsRuns) {
  connect();
  std::ranges::copy(pattern(20 * kRunMtuBytes), memory_.begin());
  wire::Packet p = request(Opcode::RcReadRequest, 500);
  p.reth.length = 20 * kRunMtuBytes;
  receive(p);
  const RunSink sink = send(100);
  EXPECT_EQ(sink.runs, (std::vector<uint32_t>{18}));
  ASSERT_EQ(sink.sent.size(), 20u);
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(sink.sent[i].psn(), 500 + i);
    const auto payload = sink.sent[i].packet.payload;
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), memory_.begin() + i * kRunMtuBytes));
  }
}

}  // namespace
}  // namespace verbena::core
