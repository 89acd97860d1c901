// The shortcut and the usual way, side by side: two engines that go through the same must look the
// same after each step, from outside.
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

// The way to the peer, as it happens to be in this step.
struct Way {
  size_t room = 100;
  bool full = false;
  bool asleep = false;
  bool reachable = false;   // its memory
  bool takes_back = false;  // what was not read

  bool operator==(const Way&) const = default;
};

class WaySink final : public RecordingSink {
 public:
  explicit WaySink(const Way& way) : RecordingSink(way.room, way.full), way_(way) {}
  bool is_asleep(wire::PathId) const override { return way_.asleep; }
  bool access(const wire::OneSided&) override { return way_.reachable; }
  bool retract(const wire::Unread&) override { return way_.takes_back; }

 private:
  Way way_;
};

// A packet of the peer's, all of it chosen by the test.
struct Arrival {
  wire::Packet packet;
  Bytes payload;
  std::optional<uint32_t> carried;
  bool apart = false;  // payload, as in shared memory
  bool stranger = false;
  uint32_t cut_bytes = 0;
};

class Side : public EngineTest {
 public:
  explicit Side(bool fast_path) : EngineTest(true, fast_path) {}
  void TestBody() override {}

  void take(std::span<const Arrival> arrivals) {
    std::vector<Bytes> headers;
    std::vector<Bytes> payloads;
    std::vector<wire::RxPacket> packets;
    const wire::RxMeta peer{.source = peer_gid_, .destination = our_gid_};
    const wire::RxMeta stranger{.source = our_gid_, .destination = our_gid_};
    for (const Arrival& a : arrivals) {
      Bytes& header = headers.emplace_back(wire::kMaxHeaderBytes);
      header.resize(wire::store_headers(a.packet, header.data()));
      if (a.carried) {
        header.resize(header.size() + 4);
        store_be32(header.data() + header.size() - 4, *a.carried);
      }
      Bytes& payload = payloads.emplace_back(a.payload);
      payload.resize((payload.size() + 3) / 4 * 4);
      if (!a.apart) header.insert(header.end(), payload.begin(), payload.end());
    }
    for (size_t i = 0; i < arrivals.size(); ++i) {
      wire::RxPacket& rx = packets.emplace_back();
      rx.bytes = headers[i];
      if (arrivals[i].apart) rx.apart = payloads[i];
      rx.meta = arrivals[i].stranger ? &stranger : &peer;
      rx.cut_bytes = arrivals[i].cut_bytes;
    }
    const Engine::Arrivals told = engine_.on_packets(packets, now_);
    told_ = {told.messages, told.receives, told.answers_due, told.responses};
  }

  void send(const Way& way) {
    WaySink sink(way);
    more_ = engine_.poll_transmit(sink, now_);
    for (const Sent& s : sink.sent) sent_.emplace_back(s.bytes, s.in_window, s.last);
  }

  void connect(TestShape shape, bool shared_receives) {
    if (shared_receives) {
      srq_ = engine_.create_srq({.pd = kPd, .max_wr = 16, .max_sges = 1});
      ASSERT_TRUE(srq_->modify({}, 2).ok());
      shape.srq = srq_;
    }
    EngineTest::connect(shape);
  }

  bool take_receive(uint64_t wr_id, uint32_t bytes, uint64_t offset) {
    if (srq_ == nullptr) return post_receive(wr_id, bytes, offset).ok();
    const Sge sge{kIova + offset, bytes, key_};
    return srq_->post({.wr_id = wr_id, .sges = {&sge, 1}}).ok();
  }

  bool post_anything(const SendRequest& r) { return engine_.post_send(*qp_, r, now_).ok(); }

  void fill_completion_queue(uint32_t left) {
    while (cq_.size() + left < cq_.capacity()) {
      *cq_.next() = Completion{};
      cq_.show();
    }
  }

  // All that can be seen, and what was sent since the last look.
  auto look() {
    std::vector<std::array<uint64_t, 10>> completed;
    for (const Completion& c : poll()) {
      completed.push_back({c.wr_id, static_cast<uint64_t>(c.status),
                           static_cast<uint64_t>(c.opcode), c.flags, c.solicited, c.byte_count,
                           c.immediate_or_rkey, c.vendor_error, c.source_qpn.value(),
                           static_cast<uint64_t>(c.time.ns)});
    }
    const QpAttributes a = qp_->query();
    // What was meant for a receive may be there although the queue pair failed meanwhile.
    const size_t compared = a.state == QpState::Rts ? 8192 : 4096;
    return std::tuple(std::exchange(sent_, {}), more_, told_, completed, events(),
                      engine_.state().counters.values, a.rq_psn, a.sq_psn, a.state,
                      qp_->peer()->in_flight(), engine_.next_deadline(), engine_.anything_to_send(),
                      Bytes(memory_.begin(), memory_.begin() + compared));
  }

 private:
  SharedReceiveQueue* srq_ = nullptr;
  std::vector<std::tuple<Bytes, bool, bool>> sent_;
  std::array<bool, 4> told_{};
  bool more_ = false;
};

// One history, by chance.
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
    wide_ = shape.path_packet_bytes != 0;
    meet();
    for (int step = 0; step < 150 && with_.qp().state() == QpState::Rts; ++step) {
      take_step();
      ASSERT_EQ(with_.look(), without_.look()) << "step " << step << " (" << said_ << ")";
    }
  }
  uint64_t carried() { return with_.counter(CounterId::acknowledgements_carried); }

 private:
  bool chance(uint32_t one_in) { return prng_.below(one_in) == 0; }
  template <typename T, size_t N>
  T one_of(const T (&values)[N]) {
    return values[prng_.below(N)];
  }
  template <typename Do>
  void both(Do what) {
    what(with_);
    what(without_);
  }

  // Most peers are Verbenas, and have heard of us.
  void meet() {
    both([](Side& s) { ASSERT_TRUE(s.take_receive(1, 256, 4096)); });
    arrive(Opcode::RcSendOnly, 8);
    both([](Side& s) { s.send({}); });
    SendRequest r;
    r.wr_id = 2;
    both([&](Side& s) {
      s.post_anything(r);
      s.send({});
    });
    Arrival ack;
    ack.packet = with_.request(Opcode::RcAck, 100);
    ack.packet.aeth = {AckKind::Ack, wire::kUnlimitedCredits, 0};
    if (!chance(4)) ack.packet.bth.mark = with_.peer_flags().sack_capable;
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
        return peer_says();
      case 3:
        return peer_acknowledges();
      case 4:
        return pass_time();
      default:
        return answer();
    }
  }

  void limit_rate() {
    said_ = "rate";
    if (!chance(4)) return;
    const uint32_t kbps = limited_ ? 0 : 1000 + static_cast<uint32_t>(prng_.below(1'000'000));
    limited_ = kbps != 0;
    const uint32_t burst = limited_ && chance(2) ? 300 : 0;
    both([&](Side& s) { s.engine_.set_rate_limit(s.qp(), kbps, burst, s.now_); });
    if (chance(2)) send();
  }

  // What the shortcut is for: the peer answers, and is answered.
  void answer() {
    if (chance(2)) peer_acknowledges();
    if (!chance(5)) post_receive();
    peer_says();
    post();
    said_ = "answer";
  }

  void post() {
    said_ = "post";
    const Sge pieces[2] = {{EngineTest::kIova + prng_.below(64), length(), with_.key_},
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
    r.sges = {pieces, chance(6) ? 2u : 1u};
    if (!chance(3)) r.flags |= kSignaled;
    if (chance(4)) r.flags |= kSolicited;
    if (chance(8)) r.flags |= kFence;
    Sge denied = pieces[0];
    if (chance(200)) {
      denied.lkey += 256;
      r.sges = {&denied, 1};
    }
    Bytes inlined(prng_.below(65));
    Sge held{reinterpret_cast<uint64_t>(inlined.data()), static_cast<uint32_t>(inlined.size()), 0};
    if (chance(4) && r.op != SendOp::Read) {
      r.flags |= kInline;
      r.sges = {&held, 1};
    }
    const bool taken = with_.post_anything(r);
    ASSERT_EQ(taken, without_.post_anything(r));
    if (!chance(6)) send();
  }

  void send() {
    Way way;
    if (chance(10)) way.room = prng_.below(2);
    way.full = chance(12);
    way.asleep = wide_ && chance(3);
    way.reachable = chance(2);
    way.takes_back = chance(2);
    both([&](Side& s) { s.send(way); });
  }

  void post_receive() {
    said_ = "receive";
    const uint32_t bytes = chance(100) ? length() : 512;
    both([&](Side& s) { s.take_receive(last_id_ + 1, bytes, 4096 + last_id_ % 4 * 512); });
    ++last_id_;
  }

  uint32_t length() {
    constexpr uint32_t kLengths[] = {8, 8, 8, 0, 1, 3, 64, 200, 252, 253, 256, 300, 3000};
    return one_of(kLengths);
  }

  Arrival arrival(Opcode opcode, uint32_t bytes) {
    Arrival a;
    const QpAttributes now = with_.qp().query();
    a.packet = with_.request(opcode, now.rq_psn);
    a.packet.reth.address += 1024 + prng_.below(8);
    a.packet.reth.length = bytes;
    a.packet.immediate = static_cast<uint32_t>(prng_.next());
    a.payload = pattern(bytes, static_cast<uint8_t>(prng_.next()));
    a.packet.bth.pad = static_cast<uint8_t>(-bytes & 3u);
    const ExtensionFlags marks = with_.peer_flags();
    const uint8_t kMarks[] = {0, marks.sack, marks.sack, marks.piggyback, marks.piggyback};
    a.packet.bth.mark = one_of(kMarks);
    if (a.packet.bth.mark == marks.piggyback) {
      a.carried = (now.sq_psn - 1 - (chance(6) ? prng_.below(3) : 0)) & 0xFFFFFF;
    }
    a.apart = wide_ && bytes != 0 && chance(2);
    if (wide_) a.cut_bytes = 65536;
    a.packet.bth.solicited = chance(4);
    return a;
  }
  void arrive(Opcode opcode, uint32_t bytes) {
    Arrival a = arrival(opcode, bytes);
    a.packet.bth.mark = 0;
    a.carried.reset();
    both([&](Side& s) { s.take({&a, 1}); });
  }

  // What peers say that are broken, or late, or nobody's peer.
  void spoil(Arrival& a) {
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
        bth.mark = static_cast<uint8_t>(prng_.below(128));
        break;
      case 7:
        a.stranger = true;
        break;
      case 8:
        a.packet.reth.rkey += 256;
        break;
      case 9:
        a.packet.reth.length += 4;
        break;
      case 10:
        a.carried = static_cast<uint32_t>(prng_.below(1 << 24));
        break;
      case 11:
        a.cut_bytes = 256;
        break;
      default:
        bth.destination = wire::Qpn(bth.destination.value() + 1);
        break;
    }
  }

  void peer_says() {
    said_ = "peer";
    constexpr Opcode kOpcodes[] = {
        Opcode::RcSendOnly,  Opcode::RcSendOnly,    Opcode::RcSendOnly,    Opcode::RcWriteOnly,
        Opcode::RcWriteOnly, Opcode::RcSendOnlyImm, Opcode::RcReadRequest, Opcode::RcWriteOnlyImm};
    std::vector<Arrival> arrivals;
    const size_t count = chance(8) ? 2 : 1;
    for (size_t i = 0; i < count; ++i) {
      const Opcode opcode = one_of(kOpcodes);
      Arrival a = arrival(opcode, opcode == Opcode::RcReadRequest ? 0 : length());
      if (a.payload.size() > 256 && !wide_) a.payload.resize(256), a.packet.reth.length = 256;
      if (a.payload.size() % 4 == 0) a.packet.bth.pad = 0;
      a.packet.bth.psn = a.packet.bth.psn + static_cast<uint32_t>(i);
      if (chance(12)) spoil(a);
      arrivals.push_back(std::move(a));
    }
    both([&](Side& s) { s.take(arrivals); });
    if (chance(5)) send();
  }

  void peer_acknowledges() {
    said_ = "acknowledgement";
    Arrival a;
    a.packet = with_.request(Opcode::RcAck, with_.qp().query().sq_psn - 1);
    a.packet.aeth = {AckKind::Ack, wire::kUnlimitedCredits, 0};
    if (chance(12)) a.packet.aeth = {AckKind::RnrNak, 1, 0};
    if (chance(12)) a.packet.aeth = {AckKind::Nak, 0, 0};
    if (chance(8)) a.packet.bth.mark = with_.peer_flags().sack_capable;
    both([&](Side& s) { s.take({&a, 1}); });
  }

  void pass_time() {
    said_ = "time";
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
  bool wide_ = false;
  bool limited_ = false;
  uint64_t last_id_ = 10;
  const char* said_ = "";
};

constexpr uint64_t kHistories = 1500;

TEST(FastPath, BehavesExactlyAsTheNormalPath) {
  uint64_t carried = 0;
  for (uint64_t seed = 1; seed <= kHistories && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto history = std::make_unique<History>(seed);
    history->run();
    carried += history->carried();
  }
  EXPECT_GT(carried, kHistories / 2) << "hardly any history got that far";
}

using FastPathTest = EngineTest;

// Its first packets were cut for a slow rate, and are acknowledged; the rest would now fit into
// one.
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

// A recovery that ended early leaves the count of packets that did not ask in the middle.
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
  std::vector<size_t> asking;
  const auto sent = transmit();
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].packet.bth.ack_request) asking.push_back(i);
  }
  EXPECT_EQ(asking, (std::vector<size_t>{7, 15, 19}));
}

// One NAK for each PSN that is missing: the one before was of another.
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
