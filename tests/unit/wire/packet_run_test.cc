// Runs of received packets, and of packets to send.
#include "wire/packet_run.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::wire {
namespace {

constexpr size_t kPayloadBytes = 256;

class PacketRunTest : public testing::Test {
 protected:
  static Packet middle(uint32_t psn) {
    Packet p;
    p.bth.opcode = static_cast<uint8_t>(Opcode::RcWriteMiddle);
    p.bth.destination = Qpn::of_slot(1, 7);
    p.bth.psn = Psn(psn);
    return p;
  }

  void add(const Packet& p, size_t payload_bytes = kPayloadBytes) {
    std::vector<std::byte> bytes(kMaxHeaderBytes);
    bytes.resize(store_headers(p, bytes.data()));
    bytes.resize(bytes.size() + payload_bytes, static_cast<std::byte>(p.bth.psn.value()));
    bytes_.push_back(std::move(bytes));
    packets_.push_back({.bytes = bytes_.back(), .meta = &meta_});
  }

  size_t run_length() {
    ParseError why{};
    Packet first;
    EXPECT_TRUE(Packet::parse_into(first, packets_[0].bytes, &why, {}));
    return PacketRun::at_front_of(packets_, first).size();
  }

  // The length of a run of two packets, of which `change` has changed the second one.
  template <typename Change>
  size_t length_if(Change change) {
    bytes_.clear();
    packets_.clear();
    add(middle(5));
    Packet second = middle(6);
    change(second);
    add(second);
    return run_length();
  }

  RxMeta meta_{};
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<RxPacket> packets_;
};

TEST_F(PacketRunTest, ConsistsOfConsecutivePsns) {
  for (const uint32_t psn : {5, 6, 7, 9}) add(middle(psn));
  EXPECT_EQ(run_length(), 3u);
}

TEST_F(PacketRunTest, ContinuesWherePsnsStartAgain) {
  for (const uint32_t psn : {0xFFFFFE, 0xFFFFFF, 0, 1}) add(middle(psn));
  EXPECT_EQ(run_length(), 4u);
}

TEST_F(PacketRunTest, EndsWhereAnotherFieldOfTheHeaderDiffers) {
  EXPECT_EQ(length_if([](Packet&) {}), 2u);
  EXPECT_EQ(length_if([](Packet& p) { p.bth.ack_request = true; }), 2u);
  EXPECT_EQ(length_if([](Packet& p) { p.bth.opcode = static_cast<uint8_t>(Opcode::RcWriteLast); }),
            1u);
  EXPECT_EQ(length_if([](Packet& p) { p.bth.solicited = true; }), 1u);
  EXPECT_EQ(length_if([](Packet& p) { p.bth.pad = 1; }), 1u);
  EXPECT_EQ(length_if([](Packet& p) { p.bth.pkey = 1; }), 1u);
  EXPECT_EQ(length_if([](Packet& p) { p.bth.becn = true; }), 1u);
  EXPECT_EQ(length_if([](Packet& p) { p.bth.destination = Qpn::of_slot(1, 8); }), 1u);
  EXPECT_EQ(length_if([](Packet& p) { p.bth.extension_flags = 1; }), 1u);
}

TEST_F(PacketRunTest, EndsWhereSizeOrAddressingDiffers) {
  add(middle(5));
  add(middle(6), kPayloadBytes - 4);
  EXPECT_EQ(run_length(), 1u);
  packets_[1].bytes = {};  // a short ACK
  EXPECT_EQ(run_length(), 1u);
  length_if([](Packet&) {});
  RxMeta equal = meta_;
  packets_[1].meta = &equal;
  EXPECT_EQ(run_length(), 2u);
  equal.traffic_class = 3;
  EXPECT_EQ(run_length(), 1u);
  packets_[1].meta = &meta_;
  packets_[1].packet_payload_bytes = 256;
  EXPECT_EQ(run_length(), 1u);
}

TEST_F(PacketRunTest, ConsistsOnlyOfPacketsInTheMiddleOfAMessage) {
  for (const Opcode opcode : {Opcode::RcWriteOnly, Opcode::RcSendFirst, Opcode::RcSendLast}) {
    bytes_.clear();
    packets_.clear();
    for (const uint32_t psn : {5, 6}) {
      Packet p = middle(psn);
      p.bth.opcode = static_cast<uint8_t>(opcode);
      add(p);
    }
    EXPECT_EQ(run_length(), 1u);
  }
}

TEST_F(PacketRunTest, GivesPayloadsAndWhetherAPacketAsksForAnAck) {
  for (const uint32_t psn : {5, 6, 7}) {
    Packet p = middle(psn);
    p.bth.ack_request = psn == 7;
    add(p);
  }
  ParseError why{};
  const Packet first = *Packet::parse(packets_[0].bytes, &why);
  const PacketRun run = PacketRun::at_front_of(packets_, first);
  EXPECT_TRUE(run.asks_for_ack());
  EXPECT_FALSE(run.first_packets(2).asks_for_ack());
  EXPECT_EQ(run.payload(1).size(), kPayloadBytes);
  EXPECT_EQ(run.payload(1)[0], std::byte{6});
}

// A sink that takes packets one by one.
class Recorder final : public PacketSink {
 public:
  size_t room() const override { return 100; }
  void push(const TxPacket& packet) override {
    bths.push_back(Bth::load(packet.header.data()));
    payloads.emplace_back(packet.payload[0].begin(), packet.payload[0].end());
  }
  std::vector<Bth> bths;
  std::vector<std::vector<std::byte>> payloads;
};

TEST(TxRun, BecomesPacketsWithTheirOwnPsnPayloadAndAckRequest) {
  std::vector<std::byte> payload(3 * kPayloadBytes);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i / 200);
  Packet first;
  first.bth.opcode = static_cast<uint8_t>(Opcode::RcSendMiddle);
  first.bth.extension_flags = 0x55;
  first.bth.psn = Psn(0xFFFFFF);
  TxPacket tx;
  tx.header_bytes = static_cast<uint8_t>(store_headers(first, tx.header.data()));
  tx.payload_bytes = kPayloadBytes;
  Recorder sink;
  sink.push_run({.first = tx, .payload = payload, .count = 3, .ack_requests = 0b010});
  ASSERT_EQ(sink.bths.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sink.bths[i].psn, Psn(0xFFFFFF) + i);
    EXPECT_EQ(sink.bths[i].ack_request, i == 1);
    EXPECT_EQ(sink.bths[i].extension_flags, 0x55);
    const auto part = std::span(payload).subspan(i * kPayloadBytes, kPayloadBytes);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), sink.payloads[i].begin()));
  }
}

}  // namespace
}  // namespace verbena::wire
