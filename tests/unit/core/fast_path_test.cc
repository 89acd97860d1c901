// The fast path against the normal path: two engines get the same inputs and must show the same
// outputs after each step.
#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "base/bytes.h"
#include "base/prng.h"
#include "tests/unit/core/engine_support.h"
#include "wire/one_sided.h"

namespace verbena::core {
namespace {

using wire::AckKind;
using wire::Opcode;

// The state of the path to the peer in this step.
struct PathCondition {
  size_t room = 100;
  bool full = false;
  bool asleep = false;
  bool reachable = false;  // the peer's memory
  bool reclaims = false;   // packets that the peer has not read

  bool operator==(const PathCondition&) const = default;
};

class PathSink final : public RecordingSink {
 public:
  explicit PathSink(const PathCondition& path) : RecordingSink(path.room, path.full), path_(path) {}
  bool is_asleep(wire::PathId) const override { return path_.asleep; }
  bool access(const wire::OneSided&) override { return path_.reachable; }
  bool retract(const wire::Unread&) override { return path_.reclaims; }

 private:
  PathCondition path_;
};

// A packet of the peer. The test chooses every field.
struct Incoming {
  wire::Packet packet;
  Bytes payload;
  std::optional<uint32_t> piggybacked_psn;
  bool separate_payload = false;  // payload is separate, as in shared memory
  bool wrong_source = false;
  uint32_t packet_payload_bytes = 0;
};

class Side : public EngineTest {
 public:
  explicit Side(bool fast_path) : EngineTest(true, fast_path) {}
  void TestBody() override {}

  void take(std::span<const Incoming> incoming) {
    std::vector<Bytes> headers;
    std::vector<Bytes> payloads;
    std::vector<wire::RxPacket> packets;
    const wire::RxMeta peer{.source = peer_gid_, .destination = our_gid_};
    const wire::RxMeta wrong_source{.source = our_gid_, .destination = our_gid_};
    for (const Incoming& a : incoming) {
      Bytes& header = headers.emplace_back(wire::kMaxHeaderBytes);
      header.resize(wire::store_headers(a.packet, header.data()));
      if (a.piggybacked_psn) {
        header.resize(header.size() + 4);
        store_be32(header.data() + header.size() - 4, *a.piggybacked_psn);
      }
      Bytes& payload = payloads.emplace_back(a.payload);
      payload.resize((payload.size() + 3) / 4 * 4);
      if (!a.separate_payload) header.insert(header.end(), payload.begin(), payload.end());
    }
    for (size_t i = 0; i < incoming.size(); ++i) {
      wire::RxPacket& rx = packets.emplace_back();
      rx.bytes = headers[i];
      if (incoming[i].separate_payload) rx.separate_payload = payloads[i];
      rx.meta = incoming[i].wrong_source ? &wrong_source : &peer;
      rx.packet_payload_bytes = incoming[i].packet_payload_bytes;
    }
    const Engine::Arrivals reported = engine_.on_packets(packets, now_);
    reported_ = {reported.messages, reported.receives, reported.responses_due, reported.responses};
  }

  void send(const PathCondition& path) {
    PathSink sink(path);
    more_ = engine_.poll_transmit(sink, now_);
    for (const Sent& s : sink.sent) sent_.emplace_back(s.bytes, s.in_window, s.last);
  }

  void connect(TestShape shape, bool shared_receives) {
    if (shared_receives) {
      srq_ = engine_.create_srq({.pd = kPd, .max_wr = 16, .max_sges = 1});
      ASSERT_TRUE(engine_.modify_srq(*srq_, {}, 2).ok());
      shape.srq = srq_;
    }
    EngineTest::connect(shape);
  }

  bool post_any_receive(uint64_t wr_id, uint32_t bytes, uint64_t offset) {
    if (srq_ == nullptr) return post_receive(wr_id, bytes, offset).ok();
    const Sge sge{kIova + offset, bytes, key_};
    return srq_->post({.wr_id = wr_id, .sges = {&sge, 1}}).ok();
  }

  bool post_any_send(const SendRequest& r) { return engine_.post_send(*qp_, r, now_).ok(); }

  void fill_completion_queue(uint32_t left) {
    while (cq_.size() + left < cq_.capacity()) {
      *cq_.next() = Completion{};
      cq_.publish();
    }
  }

  // All observable state, and the packets sent since the last call.
  auto observe() {
    std::vector<std::array<uint64_t, 10>> completed;
    for (const Completion& c : poll()) {
      completed.push_back({c.wr_id, static_cast<uint64_t>(c.status),
                           static_cast<uint64_t>(c.opcode), c.flags, c.solicited, c.byte_count,
                           c.immediate_or_rkey, c.vendor_error, c.source_qpn.value(),
                           static_cast<uint64_t>(c.time.ns)});
    }
    const QpAttributes a = qp_->query();
    // A receive buffer may be written although the queue pair failed before the completion.
    const size_t compared = a.state == QpState::Rts ? 8192 : 4096;
    return std::tuple(std::exchange(sent_, {}), more_, reported_, completed, events(),
                      engine_.state().counters.values, a.rq_psn, a.sq_psn, a.state,
                      qp_->peer()->in_flight(), engine_.next_deadline(), engine_.anything_to_send(),
                      Bytes(memory_.begin(), memory_.begin() + compared));
  }

 private:
  SharedReceiveQueue* srq_ = nullptr;
  std::vector<std::tuple<Bytes, bool, bool>> sent_;
  std::array<bool, 4> reported_{};
  bool more_ = false;
};

// One random sequence of steps.
class History {
 public:
  explicit History(uint64_t seed) : prng_(seed) {}

  void run() {
    TestShape shape;
    shape.mtu = wire::Mtu::k256;
    shape.rnr_retry = chance(4) ? 1 : 7;
    if (chance(3)) shape.path_packet_bytes = 65536;
    if (chance(20)) shape.access = kRemoteRead;
    const bool shared = chance(4);
    for (Side* side : {&with_, &without_}) side->connect(shape, shared);
    large_packets_ = shape.path_packet_bytes != 0;
    exchange_first_messages();
    for (int step = 0; step < 150 && with_.qp().state() == QpState::Rts; ++step) {
      take_step();
      ASSERT_EQ(with_.observe(), without_.observe())
          << "step " << step << " (" << last_step_ << ")";
    }
  }
  uint64_t piggybacked() { return with_.counter(CounterId::acks_piggybacked); }

 private:
  bool chance(uint32_t one_in) { return prng_.below(one_in) == 0; }
  template <typename T, size_t N>
  T one_of(const T (&values)[N]) {
    return values[prng_.below(N)];
  }
  template <typename Do>
  void both(Do act) {
    act(with_);
    act(without_);
  }

  // Exchanges the first message each way. Most peers are Verbenas and announce their extensions.
  void exchange_first_messages() {
    both([](Side& s) { ASSERT_TRUE(s.post_any_receive(1, 256, 4096)); });
    receive_plain(Opcode::RcSendOnly, 8);
    both([](Side& s) { s.send({}); });
    SendRequest r;
    r.wr_id = 2;
    both([&](Side& s) {
      s.post_any_send(r);
      s.send({});
    });
    Incoming ack;
    ack.packet = with_.request(Opcode::RcAck, 100);
    ack.packet.aeth = {AckKind::Ack, wire::kUnlimitedCredits, 0};
    if (!chance(4)) ack.packet.bth.extension_flags = with_.peer_flags().sack_capable;
    both([&](Side& s) { s.take({&ack, 1}); });
  }

  void take_step() {
    if (chance(150)) {
      const auto left = static_cast<uint32_t>(prng_.below(3));
      both([&](Side& s) { s.fill_completion_queue(left); });
    }
    switch (prng_.below(13)) {
      case 12:
        return limit_rate();
      case 0:
        return post();
      case 1:
        return post_receive();
      case 2:
        return peer_sends();
      case 3:
        return peer_acks();
      case 4:
        return pass_time();
      default:
        return ping_pong();
    }
  }

  void limit_rate() {
    last_step_ = "rate";
    if (!chance(4)) return;
    const uint32_t kbps = limited_ ? 0 : 1000 + static_cast<uint32_t>(prng_.below(1'000'000));
    limited_ = kbps != 0;
    const uint32_t burst = limited_ && chance(2) ? 300 : 0;
    both([&](Side& s) { s.engine_.set_rate_limit(s.qp(), kbps, burst, s.now_); });
    if (chance(2)) send();
  }

  // A ping-pong, the case for which the fast path exists.
  void ping_pong() {
    if (chance(2)) peer_acks();
    if (!chance(5)) post_receive();
    peer_sends();
    post();
    last_step_ = "ping-pong";
  }

  void post() {
    last_step_ = "post";
    const Sge sges[2] = {{EngineTest::kIova + prng_.below(64), length(), with_.key_},
                         {EngineTest::kIova + 512, length(), with_.key_}};
    SendRequest r;
    constexpr SendOp kOps[] = {SendOp::Send,     SendOp::Send,  SendOp::SendImm,
                               SendOp::Write,    SendOp::Write, SendOp::SendInvalidate,
                               SendOp::WriteImm, SendOp::Read};
    r.op = one_of(kOps);
    r.wr_id = ++last_id_;
    r.immediate_or_rkey = static_cast<uint32_t>(prng_.next());
    r.remote_address = 0x7000;
    r.rkey = 0x1234;
    r.sges = {sges, chance(6) ? 2u : 1u};
    if (!chance(3)) r.flags |= kSignaled;
    if (chance(4)) r.flags |= kSolicited;
    if (chance(8)) r.flags |= kFence;
    Sge denied = sges[0];
    if (chance(200)) {
      denied.lkey += 256;
      r.sges = {&denied, 1};
    }
    Bytes inlined(prng_.below(65));
    Sge inline_sge{reinterpret_cast<uint64_t>(inlined.data()),
                   static_cast<uint32_t>(inlined.size()), 0};
    if (chance(4) && r.op != SendOp::Read) {
      r.flags |= kInline;
      r.sges = {&inline_sge, 1};
    }
    const bool accepted = with_.post_any_send(r);
    ASSERT_EQ(accepted, without_.post_any_send(r));
    if (!chance(6)) send();
  }

  void send() {
    PathCondition path;
    if (chance(10)) path.room = prng_.below(2);
    path.full = chance(12);
    path.asleep = large_packets_ && chance(3);
    path.reachable = chance(2);
    path.reclaims = chance(2);
    both([&](Side& s) { s.send(path); });
  }

  void post_receive() {
    last_step_ = "receive";
    const uint32_t bytes = chance(100) ? length() : 512;
    both([&](Side& s) { s.post_any_receive(last_id_ + 1, bytes, 4096 + last_id_ % 4 * 512); });
    ++last_id_;
  }

  uint32_t length() {
    constexpr uint32_t kLengths[] = {8, 8, 8, 0, 1, 3, 64, 200, 252, 253, 256, 300, 3000};
    return one_of(kLengths);
  }

  Incoming make_incoming(Opcode opcode, uint32_t bytes) {
    Incoming a;
    const QpAttributes now = with_.qp().query();
    a.packet = with_.request(opcode, now.rq_psn);
    a.packet.reth.address += 1024 + prng_.below(8);
    a.packet.reth.length = bytes;
    a.packet.immediate = static_cast<uint32_t>(prng_.next());
    a.payload = pattern(bytes, static_cast<uint8_t>(prng_.next()));
    a.packet.bth.pad = static_cast<uint8_t>(-bytes & 3u);
    const ExtensionFlags flags = with_.peer_flags();
    const uint8_t kFlags[] = {0, flags.sack, flags.sack, flags.piggyback, flags.piggyback};
    a.packet.bth.extension_flags = one_of(kFlags);
    if (a.packet.bth.extension_flags == flags.piggyback) {
      a.piggybacked_psn = (now.sq_psn - 1 - (chance(6) ? prng_.below(3) : 0)) & 0xFFFFFF;
    }
    a.separate_payload = large_packets_ && bytes != 0 && chance(2);
    if (large_packets_) a.packet_payload_bytes = 65536;
    a.packet.bth.solicited = chance(4);
    return a;
  }
  void receive_plain(Opcode opcode, uint32_t bytes) {
    Incoming a = make_incoming(opcode, bytes);
    a.packet.bth.extension_flags = 0;
    a.piggybacked_psn.reset();
    both([&](Side& s) { s.take({&a, 1}); });
  }

  // Packets of faulty peers, late packets, and packets of other hosts.
  void corrupt(Incoming& a) {
    wire::Bth& bth = a.packet.bth;
    switch (prng_.below(13)) {
      case 0:
      case 1:
        bth.psn = bth.psn + static_cast<uint32_t>(prng_.below(4)) - 2;
        break;
      case 2:
        bth.pkey = static_cast<uint16_t>(prng_.below(2) == 0 ? 0x7FFF : 0x1234);
        break;
      case 3:
        bth.version = 1;
        break;
      case 4:
        bth.pad = static_cast<uint8_t>(prng_.below(4));
        break;
      case 5:
        bth.ack_request = false;
        break;
      case 6:
        bth.extension_flags = static_cast<uint8_t>(prng_.below(128));
        break;
      case 7:
        a.wrong_source = true;
        break;
      case 8:
        a.packet.reth.rkey += 256;
        break;
      case 9:
        a.packet.reth.length += 4;
        break;
      case 10:
        a.piggybacked_psn = static_cast<uint32_t>(prng_.below(1 << 24));
        break;
      case 11:
        a.packet_payload_bytes = 256;
        break;
      default:
        bth.destination = wire::Qpn(bth.destination.value() + 1);
        break;
    }
  }

  void peer_sends() {
    last_step_ = "peer";
    constexpr Opcode kOpcodes[] = {
        Opcode::RcSendOnly,  Opcode::RcSendOnly,    Opcode::RcSendOnly,    Opcode::RcWriteOnly,
        Opcode::RcWriteOnly, Opcode::RcSendOnlyImm, Opcode::RcReadRequest, Opcode::RcWriteOnlyImm};
    std::vector<Incoming> incoming;
    const size_t count = chance(8) ? 2 : 1;
    for (size_t i = 0; i < count; ++i) {
      const Opcode opcode = one_of(kOpcodes);
      Incoming a = make_incoming(opcode, opcode == Opcode::RcReadRequest ? 0 : length());
      if (a.payload.size() > 256 && !large_packets_)
        a.payload.resize(256), a.packet.reth.length = 256;
      if (a.payload.size() % 4 == 0) a.packet.bth.pad = 0;
      a.packet.bth.psn = a.packet.bth.psn + static_cast<uint32_t>(i);
      if (chance(12)) corrupt(a);
      incoming.push_back(std::move(a));
    }
    both([&](Side& s) { s.take(incoming); });
    if (chance(5)) send();
  }

  void peer_acks() {
    last_step_ = "ACK";
    Incoming a;
    a.packet = with_.request(Opcode::RcAck, with_.qp().query().sq_psn - 1);
    a.packet.aeth = {AckKind::Ack, wire::kUnlimitedCredits, 0};
    if (chance(12)) a.packet.aeth = {AckKind::RnrNak, 1, 0};
    if (chance(12)) a.packet.aeth = {AckKind::Nak, 0, 0};
    if (chance(8)) a.packet.bth.extension_flags = with_.peer_flags().sack_capable;
    both([&](Side& s) { s.take({&a, 1}); });
  }

  void pass_time() {
    last_step_ = "time";
    if (chance(3)) {
      both([](Side& s) { s.next_deadline(); });
    } else {
      const auto ns = static_cast<int64_t>(prng_.below(50'000));
      both([&](Side& s) { s.now_ = s.now_ + nanoseconds(ns); });
    }
    send();
  }

  Prng prng_;
  Side with_{true};
  Side without_{false};
  bool large_packets_ = false;
  bool limited_ = false;
  uint64_t last_id_ = 10;
  const char* last_step_ = "";
};

constexpr uint64_t kHistories = 1500;

TEST(FastPath, BehavesExactlyAsTheNormalPath) {
  uint64_t piggybacked = 0;
  for (uint64_t seed = 1; seed <= kHistories && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto history = std::make_unique<History>(seed);
    history->run();
    piggybacked += history->piggybacked();
  }
  EXPECT_GT(piggybacked, kHistories / 2) << "too few histories piggyback an ACK";
}

using FastPathTest = EngineTest;

// The first packets are small because of a low rate limit, and are acknowledged. The rest of the
// message would now fit into one packet.
TEST_F(FastPathTest, LeavesAPartlySentMessageToTheNormalPath) {
  connect({.path_packet_bytes = 65536});
  engine_.set_rate_limit(qp(), 1000, 300, now_);
  ASSERT_TRUE(post(SendOp::Send, 1, 3000).ok());
  const auto sent = transmit();
  ASSERT_FALSE(sent.empty());
  ASSERT_LT(sent.size(), 12u);
  receive_ack(sent.back().psn());
  engine_.set_rate_limit(qp(), 0, 0, now_);
  const auto rest = transmit_opcodes();
  ASSERT_EQ(rest.size() + sent.size(), 12u);
  EXPECT_EQ(rest.front(), Opcode::RcSendMiddle);
  EXPECT_EQ(rest.back(), Opcode::RcSendLast);
}

// A recovery that ends early leaves the count of packets without an ACK request in the middle.
TEST_F(FastPathTest, RequestsAnAckWithEveryEighthPacket) {
  connect();
  ASSERT_TRUE(post(SendOp::Send, 1, 256 * 6).ok());
  transmit();
  receive_nak(101, AckKind::Nak, 0);
  ASSERT_EQ(transmit(3).size(), 3u);
  receive_ack(105);
  poll();
  transmit();
  ASSERT_TRUE(post(SendOp::Send, 2, 8).ok());
  transmit();
  receive_ack(106);
  ASSERT_TRUE(post(SendOp::Send, 3, 256 * 20).ok());
  std::vector<size_t> with_ack_request;
  const auto sent = transmit();
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].packet.bth.ack_request) with_ack_request.push_back(i);
  }
  EXPECT_EQ(with_ack_request, (std::vector<size_t>{7, 15, 19}));
}

// The responder sends one NAK for each missing PSN. The RNR NAK before was for another PSN.
TEST_F(FastPathTest, ReportsAGapAfterARefusedRequest) {
  connect();
  receive(request(Opcode::RcSendOnly, 500), pattern(8));
  auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.aeth.kind, AckKind::RnrNak);
  ASSERT_TRUE(post_receive(1, 256).ok());
  receive(request(Opcode::RcSendOnly, 500), pattern(8));
  EXPECT_EQ(transmit_opcodes(), std::vector{Opcode::RcAck});
  receive(request(Opcode::RcSendOnly, 502), pattern(8));
  sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.aeth.kind, AckKind::Nak);
}

}  // namespace
}  // namespace verbena::core
