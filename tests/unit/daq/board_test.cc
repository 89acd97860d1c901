// A board's data: packets as the firmware makes them, and what it does when they are lost. The host
// is played by hand, with virtual time.
#include "daq/board.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "daq/pattern.h"
#include "tests/unit/daq/daq_support.h"

namespace verbena::daq {
namespace {

constexpr uint32_t kPsn = 0xFFFFFE;  // close to where it wraps

struct Sent {
  std::vector<std::byte> bytes;
  wire::Packet packet;
};

class Recorder final : public wire::PacketSink {
 public:
  size_t room() const override { return room_; }
  void push(const wire::TxPacket& p) override {
    Sent sent;
    sent.bytes.assign(p.header.begin(), p.header.begin() + p.header_bytes);
    for (const auto& part : p.payload)
      sent.bytes.insert(sent.bytes.end(), part.begin(), part.end());
    EXPECT_EQ(p.pad, 0);
    packets.push_back(std::move(sent));
    wire::ParseError why{};
    packets.back().packet = *wire::Packet::parse(packets.back().bytes, &why);
  }
  std::vector<Sent> packets;
  size_t room_ = 1000;
};

class BoardTest : public testing::Test {
 protected:
  BoardTest() {
    config_.manager = {.ip = kBoardIp};
    config_.queue_pair.mtu = wire::Mtu::k1024;
  }
  void open(uint32_t host_qpn = 0x10001) {
    if (!board_) board_.emplace(config_);
    Message m{.info_valid = true, .request = Request::OpenQp};
    m.local = {.qpn = host_qpn, .psn = kPsn, .rkey = 0x1234, .address = 0x10000, .ip = kHostIp};
    m.listening_port = kHostPort;
    board_->on_message(m.store(), now_);
  }
  void command(TransferKind kind, bool immediate, uint32_t length, uint32_t count, uint32_t gap = 0,
               uint32_t qpn = 256) {
    Message m;
    m.remote.qpn = qpn;
    m.transmit = {true, true, immediate, kind, length, count, gap};
    board_->on_message(m.store(), now_);
  }
  std::vector<Sent> transmit() {
    Recorder sink;
    board_->transmit(sink, now_);
    return std::move(sink.packets);
  }
  void answer(wire::AckKind kind, uint8_t value, uint32_t psn, uint32_t qpn = 256,
              uint32_t source = kHostIp) {
    wire::Packet p;
    p.bth.opcode = static_cast<uint8_t>(wire::Opcode::RcAck);
    p.bth.destination = wire::Qpn(qpn);
    p.bth.psn = wire::Psn(psn);
    p.aeth = {kind, value, 0};
    std::array<std::byte, 64> bytes;
    const size_t n = wire::store_headers(p, bytes.data());
    board_->on_packet(std::span(bytes).first(n), source, now_);
  }
  void ack(uint32_t psn) { answer(wire::AckKind::Ack, 31, psn); }
  void nak(wire::NakCode code, uint32_t psn) {
    answer(wire::AckKind::Nak, static_cast<uint8_t>(code), psn);
  }
  void expire() {
    now_ = board_->next_deadline(now_);
    ASSERT_NE(now_, kNever);
    board_->on_deadline(now_);
  }
  const BoardQpCounters& counters() { return board_->queue_pair(256).counters(); }
  static std::vector<uint32_t> psns(const std::vector<Sent>& sent) {
    std::vector<uint32_t> list;
    for (const Sent& s : sent) list.push_back(s.packet.bth.psn.value());
    return list;
  }
  bool said(const std::string& what) {
    bool found = false;
    while (const auto line = board_->next_line()) found |= line->find(what) != std::string::npos;
    return found;
  }

  Board::Config config_;
  std::optional<Board> board_;
  Instant now_{1'000'000'000};
};

TEST_F(BoardTest, WritesAsTheFirmwareDoes) {
  open();
  command(TransferKind::Write, true, 2503, 2);  // 2500 bytes: the low bits are not there
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 6u);
  using enum wire::Opcode;
  const wire::Opcode expected[] = {RcWriteFirst, RcWriteMiddle, RcWriteLastImm};
  uint32_t word = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    const wire::Packet& p = sent[i].packet;
    EXPECT_EQ(p.bth.opcode, static_cast<uint8_t>(expected[i % 3]));
    EXPECT_EQ(p.bth.psn, wire::Psn(kPsn) + static_cast<uint32_t>(i));
    EXPECT_TRUE(p.bth.ack_request);
    EXPECT_TRUE(p.bth.migrated);
    EXPECT_EQ(p.bth.pkey, 0xFFFF);
    EXPECT_EQ(p.bth.solicited, i % 3 == 2);
    EXPECT_EQ(p.bth.destination.value(), 0x10001u);
    EXPECT_EQ(p.payload.size(), i % 3 == 2 ? 452u : 1024u);
    for (size_t at = 0; at < p.payload.size(); at += 4, ++word) {
      uint32_t value;
      std::memcpy(&value, p.payload.data() + at, 4);
      ASSERT_EQ(value, word);
    }
  }
  EXPECT_EQ(sent[0].packet.reth.address, 0x10000u);
  EXPECT_EQ(sent[0].packet.reth.rkey, 0x1234u);
  EXPECT_EQ(sent[0].packet.reth.length, 2500u);
  EXPECT_EQ(sent[3].packet.reth.address, 0x10000u + 2500);
  EXPECT_EQ(sent[5].packet.immediate, 12345678u);
}

TEST_F(BoardTest, SendsWithAndWithoutImmediate) {
  open();
  command(TransferKind::Send, false, 64, 1);
  auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.bth.opcode, static_cast<uint8_t>(wire::Opcode::RcSendOnly));
  EXPECT_TRUE(sent[0].packet.bth.solicited);
  command(TransferKind::Send, true, 1028, 1);
  sent = transmit();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].packet.bth.opcode, static_cast<uint8_t>(wire::Opcode::RcSendFirst));
  EXPECT_EQ(sent[1].packet.bth.opcode, static_cast<uint8_t>(wire::Opcode::RcSendLastImm));
}

TEST_F(BoardTest, OffsetsOfWritesWrap) {
  config_.queue_pair.wrap_bytes = 65536;
  config_.queue_pair.inflight_bytes = 1 << 20;
  open();
  command(TransferKind::Write, false, 40000, 3);
  std::vector<uint64_t> offsets;
  for (const Sent& s : transmit()) {
    if (s.packet.op.has_reth) offsets.push_back(s.packet.reth.address - 0x10000);
  }
  EXPECT_EQ(offsets, (std::vector<uint64_t>{0, 40000, 80000 - 65536}));
}

TEST_F(BoardTest, ThirtyTwoRequestsAreUnderWay) {
  open();
  command(TransferKind::Send, false, 8, 100);
  EXPECT_EQ(transmit().size(), 32u);
  EXPECT_EQ(transmit().size(), 0u);
  ack(kPsn + 9);  // cumulative
  EXPECT_EQ(transmit().size(), 10u);
  EXPECT_EQ(counters().messages_acked, 10u);
}

TEST_F(BoardTest, BytesUnderWayAreBounded) {
  config_.queue_pair.inflight_bytes = 4096;
  open();
  command(TransferKind::Send, false, 1024, 10);
  EXPECT_EQ(transmit().size(), 4u);
  open(0x20002);
  command(TransferKind::Send, false, 10240, 2, 0, 257);  // larger than the buffer: one at a time
  EXPECT_EQ(transmit().size(), 10u);
}

TEST_F(BoardTest, GoesBackToWhatTheNakNames) {
  open();
  command(TransferKind::Write, true, 4096, 2);
  EXPECT_EQ(transmit().size(), 8u);
  nak(wire::NakCode::SequenceError, kPsn + 5);
  EXPECT_EQ(counters().messages_acked, 1u);  // what is before was received
  const auto again = transmit();
  EXPECT_EQ(psns(again), (std::vector<uint32_t>{3, 4, 5}));  // kPsn + 5 to kPsn + 7
  EXPECT_EQ(again[2].packet.immediate, 12345678u);
  EXPECT_FALSE(find_mismatch(again[0].packet.payload, 5 * 256).has_value());
  EXPECT_EQ(counters().packets_retransmitted, 3u);
  ack(kPsn + 7);
  EXPECT_FALSE(board_->transferring());
  EXPECT_EQ(board_->next_deadline(now_), kNever);
}

TEST_F(BoardTest, AnOldMessageIsRepeatedAsWhatItWas) {
  open();
  command(TransferKind::Write, true, 64, 1);
  transmit();
  command(TransferKind::Send, false, 64, 1);
  transmit();
  nak(wire::NakCode::SequenceError, kPsn);
  const auto again = transmit();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].packet.bth.opcode, static_cast<uint8_t>(wire::Opcode::RcWriteOnlyImm));
  EXPECT_EQ(again[1].packet.bth.opcode, static_cast<uint8_t>(wire::Opcode::RcSendOnly));
}

TEST_F(BoardTest, TimesOutThenFails) {
  open();
  command(TransferKind::Send, false, 2048, 1);
  EXPECT_EQ(transmit().size(), 2u);
  for (int i = 0; i < 7; ++i) {
    expire();
    EXPECT_EQ(transmit().size(), 2u);
  }
  expire();
  EXPECT_EQ(board_->state_of(256), BoardQpState::Error);
  EXPECT_EQ(transmit().size(), 0u);
  EXPECT_TRUE(said("all retries are used up"));
}

TEST_F(BoardTest, ProgressRenewsTheRetries) {
  open();
  command(TransferKind::Send, false, 64, 2);
  transmit();
  for (int i = 0; i < 7; ++i) expire();
  ack(kPsn);
  for (int i = 0; i < 7; ++i) expire();
  EXPECT_EQ(board_->state_of(256), BoardQpState::Rts);
}

TEST_F(BoardTest, WaitsWhenTheHostIsNotReady) {
  open();
  command(TransferKind::Send, false, 64, 3);
  transmit();
  answer(wire::AckKind::RnrNak, 12, kPsn + 1);  // 0.64 ms
  EXPECT_EQ(counters().messages_acked, 1u);
  EXPECT_EQ(transmit().size(), 0u);
  const Instant asked = now_;
  expire();
  EXPECT_EQ((now_ - asked).ns, 640'000);
  EXPECT_EQ(transmit().size(), 2u);
  // For ever, by default.
  for (int i = 0; i < 100; ++i) {
    answer(wire::AckKind::RnrNak, 1, kPsn + 1);
    expire();
    transmit();
  }
  EXPECT_EQ(board_->state_of(256), BoardQpState::Rts);
  EXPECT_EQ(counters().rnr_naks, 101u);
}

TEST_F(BoardTest, RnrRetriesCanEnd) {
  config_.queue_pair.rnr_retries = 2;
  open();
  command(TransferKind::Send, false, 64, 1);
  for (int i = 0; i < 3; ++i) {
    transmit();
    answer(wire::AckKind::RnrNak, 1, kPsn);
    if (i < 2) expire();
  }
  EXPECT_EQ(board_->state_of(256), BoardQpState::Error);
}

TEST_F(BoardTest, AnyOtherNakEndsIt) {
  open();
  command(TransferKind::Write, false, 64, 2);
  transmit();
  nak(wire::NakCode::RemoteAccess, kPsn + 1);
  EXPECT_EQ(board_->state_of(256), BoardQpState::Error);
  EXPECT_EQ(board_->queue_pair(256).syndrome(), 0x62);
  EXPECT_TRUE(said("NAK code 2"));
}

TEST_F(BoardTest, WhatIsNotItsBusinessIsDropped) {
  open();
  command(TransferKind::Send, false, 64, 1);
  transmit();
  answer(wire::AckKind::Ack, 31, kPsn, 256, 0x0A000001);  // somebody else
  answer(wire::AckKind::Ack, 31, kPsn, 257);              // not open
  answer(wire::AckKind::Ack, 31, kPsn, 9);
  board_->on_packet({}, kHostIp, now_);
  EXPECT_EQ(board_->counters().foreign_packets, 4u);
  ack(kPsn + 1);  // was never sent
  ack(kPsn - 1);
  EXPECT_EQ(counters().unexpected_responses, 2u);
  EXPECT_EQ(counters().messages_acked, 0u);
}

TEST_F(BoardTest, GapsAreKept) {
  open();
  command(TransferKind::Send, false, 64, 3, 322266);  // a millisecond
  EXPECT_EQ(transmit().size(), 1u);
  const Instant start = now_;
  ack(kPsn);
  expire();
  EXPECT_NEAR(static_cast<double>((now_ - start).ns), 1e6, 100);
  EXPECT_EQ(transmit().size(), 1u);
}

TEST_F(BoardTest, WhoCannotWaitDropsAndSaysSo) {
  config_.queue_pair.overrun = Overrun::Drop;
  config_.queue_pair.max_requests = 2;
  config_.queue_pair.timeout = seconds(10);
  open();
  command(TransferKind::Send, false, 64, 5, 322266);
  for (int i = 0; i < 4; ++i) {
    transmit();
    expire();
  }
  transmit();
  EXPECT_EQ(counters().overruns, 3u);
  EXPECT_EQ(counters().messages_made, 5u);
  ack(kPsn + 1);
  EXPECT_FALSE(board_->transferring());
  command(TransferKind::Send, false, 64, 1);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_FALSE(
      find_mismatch(sent[0].packet.payload, 5 * 16).has_value());  // words went on meanwhile
}

TEST_F(BoardTest, ABusyGeneratorIgnoresOrders) {
  open();
  command(TransferKind::Send, false, 64, 100);
  transmit();
  command(TransferKind::Send, false, 64, 1);
  EXPECT_TRUE(said("busy"));
}

TEST_F(BoardTest, TheLinkHasASpeed) {
  config_.link_gbps = 1;
  config_.queue_pair.inflight_bytes = 1 << 20;
  open();
  command(TransferKind::Send, false, 1024, 1000);
  size_t sent = 0;
  const Instant end = now_ + milliseconds(1);
  while (now_ < end) {
    for (const Sent& s : transmit()) {
      ++sent;
      ack(s.packet.bth.psn.value());
    }
    now_ = std::max(board_->next_deadline(now_), now_ + nanoseconds(1));
    board_->on_deadline(now_);
  }
  // A millisecond, and another that may be made up for, of 1068 bytes each on the wire.
  EXPECT_NEAR(static_cast<double>(sent), 2e6 / 8 / 1068, 2);
}

TEST_F(BoardTest, QueuePairsTakeTurns) {
  open(1);
  open(2);
  command(TransferKind::Send, false, 8, 10, 0, 256);
  command(TransferKind::Send, false, 8, 10, 0, 257);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 20u);
  for (size_t i = 1; i < sent.size(); ++i) {
    EXPECT_NE(sent[i].packet.bth.destination, sent[i - 1].packet.bth.destination);
  }
}

TEST_F(BoardTest, AReopenedQueuePairStartsAfresh) {
  config_.manager.queue_pairs = 1;
  open();
  command(TransferKind::Send, false, 64, 5);
  transmit();
  ack(kPsn + 1);
  Message close{.info_valid = true, .request = Request::CloseQp};
  close.local = {.qpn = 0x10001, .ip = kHostIp};
  close.remote.qpn = 256;
  board_->on_message(close.store(), now_);
  EXPECT_EQ(transmit().size(), 0u);
  EXPECT_EQ(board_->totals().messages_acked, 2u);
  open(0x30003);
  command(TransferKind::Send, false, 64, 1);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.bth.psn.value(), kPsn);
  EXPECT_FALSE(find_mismatch(sent[0].packet.payload, 0).has_value());
}

TEST_F(BoardTest, MissionOpensSendsAndCloses) {
  board_.emplace(config_);
  board_->begin({kHostIp, kHostPort, 2, {true, true, false, TransferKind::Send, 64, 3, 0}}, now_);
  uint32_t host_qpn = 0x500;
  for (int i = 0; i < 2; ++i) {
    const auto open = board_->next_message();
    ASSERT_TRUE(open);
    Message yes{.info_valid = true, .request = Request::OpenQp, .ack_valid = true, .ack = Ack::Ack};
    yes.local = {.qpn = host_qpn++, .psn = kPsn, .ip = kHostIp};
    yes.remote = open->message.local;
    board_->on_message(yes.store(), now_);
  }
  EXPECT_EQ(transmit().size(), 6u);
  EXPECT_FALSE(board_->next_message());
  for (const uint32_t qpn : {256u, 257u}) {
    answer(wire::AckKind::Ack, 31, kPsn + 2, qpn);
    const auto close = board_->next_message();
    ASSERT_TRUE(close);
    EXPECT_EQ(close->message.request, Request::CloseQp);
    EXPECT_FALSE(board_->master_task_done());
    Message yes{
        .info_valid = true, .request = Request::CloseQp, .ack_valid = true, .ack = Ack::Ack};
    yes.local = {.qpn = close->message.remote.qpn, .ip = kHostIp};
    yes.remote = close->message.local;
    board_->on_message(yes.store(), now_);
  }
  EXPECT_TRUE(board_->master_task_done());
}

}  // namespace
}  // namespace verbena::daq
