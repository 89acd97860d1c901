// Parsing and building packets: every opcode, and truncation at every length.
#include "wire/packet.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace verbena::wire {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<uint8_t> rc_opcodes() {
  std::vector<uint8_t> out;
  for (int i = 0; i < 32; ++i) {
    if (info_of(static_cast<uint8_t>(i)).valid()) out.push_back(static_cast<uint8_t>(i));
  }
  return out;
}

Packet random_packet(uint8_t opcode, Prng& prng) {
  const auto bit = [&] { return prng.below(2) == 0; };
  const auto u32 = [&] { return static_cast<uint32_t>(prng.next()); };
  Packet p;
  p.bth = {.opcode = opcode,
           .solicited = bit(),
           .migrated = bit(),
           .pad = 0,
           .version = 0,
           .pkey = static_cast<uint16_t>(u32()),
           .fecn = bit(),
           .becn = bit(),
           .destination = Qpn(u32()),
           .ack_request = bit(),
           .psn = Psn(u32())};
  p.reth = {prng.next(), u32(), u32()};
  p.aeth = {static_cast<AckKind>(prng.below(4)), static_cast<uint8_t>(prng.below(32)),
            u32() & 0xFFFFFF};
  p.atomic = {prng.next(), u32(), prng.next(), prng.next()};
  p.original = prng.next();
  p.immediate = u32();
  p.invalidate_rkey = u32();
  return p;
}

TEST(Packet, ParsesWhatItStoresForEveryOpcode) {
  Prng prng(1);
  for (const uint8_t opcode : rc_opcodes()) {
    for (int i = 0; i < 50; ++i) {
      SCOPED_TRACE(name_of(opcode));
      Packet p = random_packet(opcode, prng);
      const auto payload = static_cast<uint32_t>(prng.below(64));
      p.bth.pad = static_cast<uint8_t>(-payload & 3u);
      Bytes bytes(64);
      bytes.resize(store_headers(p, bytes.data()));
      ASSERT_EQ(bytes.size(), info_of(opcode).header_bytes);
      bytes.resize(bytes.size() + payload + p.bth.pad);
      ParseError why{};
      const auto q = Packet::parse(bytes, &why);
      ASSERT_TRUE(q.has_value());
      EXPECT_EQ(q->payload.size(), payload);
      EXPECT_EQ(q->bth.solicited, p.bth.solicited);
      EXPECT_EQ(q->bth.migrated, p.bth.migrated);
      EXPECT_EQ(q->bth.pkey, p.bth.pkey);
      EXPECT_EQ(q->bth.fecn, p.bth.fecn);
      EXPECT_EQ(q->bth.becn, p.bth.becn);
      EXPECT_EQ(q->bth.destination, p.bth.destination);
      EXPECT_EQ(q->bth.ack_request, p.bth.ack_request);
      EXPECT_EQ(q->bth.psn, p.bth.psn);
      if (q->op.has_reth) {
        EXPECT_EQ(q->reth.address, p.reth.address);
        EXPECT_EQ(q->reth.rkey, p.reth.rkey);
        EXPECT_EQ(q->reth.length, p.reth.length);
      }
      if (q->op.has_aeth) {
        EXPECT_EQ(q->aeth.kind, p.aeth.kind);
        EXPECT_EQ(q->aeth.value, p.aeth.value);
        EXPECT_EQ(q->aeth.msn, p.aeth.msn);
      }
      if (q->op.has_atomic_eth) {
        EXPECT_EQ(q->atomic.address, p.atomic.address);
        EXPECT_EQ(q->atomic.rkey, p.atomic.rkey);
        EXPECT_EQ(q->atomic.swap_or_add, p.atomic.swap_or_add);
        EXPECT_EQ(q->atomic.compare, p.atomic.compare);
      }
      EXPECT_TRUE(!q->op.has_atomic_ack_eth || q->original == p.original);
      EXPECT_TRUE(!q->op.has_immediate || q->immediate == p.immediate);
      EXPECT_TRUE(!q->op.has_invalidate || q->invalidate_rkey == p.invalidate_rkey);
    }
  }
}

TEST(Packet, RejectsTruncationAtEveryLength) {
  Prng prng(2);
  for (int opcode = 0; opcode < 256; ++opcode) {
    const OpcodeInfo& info = info_of(static_cast<uint8_t>(opcode));
    Packet p = random_packet(static_cast<uint8_t>(opcode), prng);
    Bytes whole(128);
    store_headers(p, whole.data());
    for (size_t length = 0; length <= 80; ++length) {
      const Bytes cut(
          whole.begin(),
          whole.begin() +
              static_cast<ptrdiff_t>(
                  length));  // a separate allocation, so that sanitizers detect reads past its end
      ParseError why{};
      const auto q = Packet::parse(cut, &why);
      const bool good =
          info.valid() && length >= info.header_bytes && (length - info.header_bytes) % 4 == 0;
      ASSERT_EQ(q.has_value(), good) << "opcode " << opcode << " length " << length;
      if (good) continue;
      if (length < kBthBytes) {
        EXPECT_EQ(why, ParseError::TooShort);
      } else if (!info.valid()) {
        EXPECT_EQ(why, ParseError::UnknownOpcode);
      } else {
        EXPECT_EQ(why, length < info.header_bytes ? ParseError::TooShort : ParseError::BadPadding);
      }
    }
  }
}

TEST(Packet, RejectsPaddingBeyondThePayload) {
  Packet p;
  p.bth.opcode = static_cast<uint8_t>(Opcode::RcSendOnly);
  p.bth.pad = 3;
  Bytes bytes(12);
  store_headers(p, bytes.data());
  ParseError why{};
  EXPECT_FALSE(Packet::parse(bytes, &why));
  EXPECT_EQ(why, ParseError::BadPadding);
  bytes.resize(16);
  const auto q = Packet::parse(bytes, &why);
  ASSERT_TRUE(q.has_value());
  EXPECT_EQ(q->payload.size(), 1u);
}

TEST(Packet, RejectsAnotherVersion) {
  Packet p;
  p.bth.opcode = static_cast<uint8_t>(Opcode::RcSendOnly);
  p.bth.version = 1;
  Bytes bytes(12);
  store_headers(p, bytes.data());
  ParseError why{};
  EXPECT_FALSE(Packet::parse(bytes, &why));
  EXPECT_EQ(why, ParseError::BadVersion);
}

TEST(Packet, StoresSyndromes) {
  const std::tuple<AckKind, uint8_t, uint8_t> cases[] = {
      {AckKind::Ack, kUnlimitedCredits, 0x1F},
      {AckKind::RnrNak, 12, 0x2C},
      {AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), 0x60},
      {AckKind::Nak, static_cast<uint8_t>(NakCode::InvalidRequest), 0x61},
      {AckKind::Nak, static_cast<uint8_t>(NakCode::RemoteAccess), 0x62},
      {AckKind::Nak, static_cast<uint8_t>(NakCode::RemoteOperational), 0x63}};
  for (const auto& [kind, value, byte] : cases) {
    std::byte out[4];
    Aeth{kind, value, 0x010203}.store(out);
    EXPECT_EQ(std::to_integer<uint8_t>(out[0]), byte);
    EXPECT_EQ(load_be24(out + 1), 0x010203u);
  }
}

}  // namespace
}  // namespace verbena::wire
