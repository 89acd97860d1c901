// Packets that the Linux kernel's Soft-RoCE sent, as hex. Long payloads are truncated to their
// first 16 bytes and the ICRC is omitted. Parsing must give the kernel's values, and storing these
// values must give the same bytes, except for MigReq: Soft-RoCE sends 0, hardware 1.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "wire/packet.h"

namespace verbena::wire {
namespace {

using Bytes = std::vector<std::byte>;

struct Golden {
  Opcode opcode;
  uint32_t destination;
  uint32_t psn;
  bool ack_request;
  uint8_t pad;
  const char* hex;
};

constexpr Golden kPackets[] = {
    {Opcode::RcSendFirst, 0x000031, 0x090db8, false, 0,
     "0000ffff0000003100090db894c7e9ace84ca5609bc479989af42da4"},
    {Opcode::RcSendMiddle, 0x000031, 0x090db9, false, 0,
     "0100ffff0000003100090db9a5feffd944e3038b8f13dd9791a0ce1a"},
    {Opcode::RcSendLast, 0x000031, 0x090dbb, true, 0,
     "0200ffff0000003180090dbb1377ef39d50509c812a50b6eeb15376e"},
    {Opcode::RcSendOnly, 0x000012, 0xdcb57f, true, 0, "0400ffff0000001280dcb57f00001000"},
    {Opcode::RcWriteFirst, 0x000014, 0x9d26f2, false, 0,
     "0600ffff00000014009d26f2000055aeb93917110000076500002711616d3e9b"
     "a9a684d8dfcd8d199efddab5"},
    {Opcode::RcWriteMiddle, 0x000014, 0x9d26f3, false, 0,
     "0700ffff00000014009d26f3ef19bb745db58e6b8bcc807c3f5455eb"},
    {Opcode::RcWriteLast, 0x000014, 0x9d26f4, true, 3,
     "0830ffff00000014809d26f4aec88d613282773f13d7f9e9f206d751"},
    {Opcode::RcWriteOnly, 0x000011, 0x88d0e0, true, 0,
     "0a00ffff000000118088d0e0000055a38e73eda0000004550000006472646d61"
     "2d70696e672d303a20414243"},
    {Opcode::RcReadRequest, 0x000011, 0x88d0de, true, 0,
     "0c00ffff000000118088d0de000055a38e7415b0000005d400000064"},
    {Opcode::RcReadResponseFirst, 0x000015, 0xe32924, false, 0,
     "0d00ffff0000001500e329241f000001ce1bb7edca42b9bc0417a8a721f3e696"},
    {Opcode::RcReadResponseMiddle, 0x000015, 0xe32925, false, 0,
     "0e00ffff0000001500e32925ab24271b831d76979e209da9b99c23c4"},
    {Opcode::RcReadResponseLast, 0x000015, 0xe32926, false, 3,
     "0f30ffff0000001500e329261f0000014d161fd5a79c2202b1721524e0f78c15"},
    {Opcode::RcReadResponseOnly, 0x000011, 0x88d0de, false, 0,
     "1000ffff000000110088d0de1f00000172646d612d70696e672d303a20414243"},
    {Opcode::RcAck, 0x000011, 0x0985c9, false, 0, "1100ffff00000011000985c91f000001"},
    {Opcode::RcAtomicAck, 0x000016, 0x4babfb, false, 0,
     "1200ffff00000016004babfb1f000001d458e08f6abfddbb"},
    {Opcode::RcFetchAdd, 0x000016, 0x4babfb, true, 0,
     "1400ffff00000016804babfb000055dee6ec5000000009ec0000000000000001"
     "0000000000000000"},
    {static_cast<Opcode>(with_base(kUcBase, Opcode::RcWriteFirst)), 0x000018, 0x199c36, false, 0,
     "2600ffff0000001800199c36000055966f19d32800000b290000232815a19a3a"
     "f34ad728b252ce9d7fd0aeb4"},
    {static_cast<Opcode>(with_base(kUcBase, Opcode::RcWriteMiddle)), 0x000018, 0x199c37, false, 0,
     "2700ffff0000001800199c3788b3cadf6c64ecfd67e9862790f4a438"},
    {static_cast<Opcode>(with_base(kUcBase, Opcode::RcWriteLast)), 0x000018, 0x199c38, false, 0,
     "2800ffff0000001800199c38d1cb3d16a28483f100b2e42b4830536f"},
    // A MAD of the connection manager to QP 1. This kernel sets the ACK request, although UD has no
    // ACKs. Verbena never sets it.
    {Opcode::UdSendOnly, 0x000001, 0x000000, true, 0,
     "6400ffff000000018000000080010000000000010107020300000000000000026f3fd6bf"},
};

Bytes from_hex(const std::string& hex) {
  Bytes out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::strtoul(hex.substr(i, 2).c_str(), nullptr, 16)));
  }
  return out;
}

Packet parse(const Bytes& bytes) {
  ParseError why{};
  const auto p = Packet::parse(bytes, &why);
  EXPECT_TRUE(p.has_value()) << static_cast<int>(why);
  return p.value_or(Packet{});
}

TEST(Golden, ParsesPacketsOfTheKernel) {
  for (const Golden& g : kPackets) {
    SCOPED_TRACE(name_of(static_cast<uint8_t>(g.opcode)));
    const Bytes bytes = from_hex(g.hex);
    const Packet p = parse(bytes);
    EXPECT_EQ(p.bth.opcode, static_cast<uint8_t>(g.opcode));
    EXPECT_EQ(p.bth.destination.value(), g.destination);
    EXPECT_EQ(p.bth.psn.value(), g.psn);
    EXPECT_EQ(p.bth.ack_request, g.ack_request);
    EXPECT_EQ(p.bth.pad, g.pad);
    EXPECT_EQ(p.bth.pkey, kDefaultPkey);
    EXPECT_FALSE(p.bth.solicited);
    EXPECT_FALSE(p.bth.migrated);
    EXPECT_EQ(p.payload.size() + p.bth.pad + p.op.header_bytes, bytes.size());
  }
}

TEST(Golden, StoresTheSameBytes) {
  for (const Golden& g : kPackets) {
    SCOPED_TRACE(name_of(static_cast<uint8_t>(g.opcode)));
    const Bytes bytes = from_hex(g.hex);
    Packet p = parse(bytes);
    std::byte out[64];
    ASSERT_EQ(store_headers(p, out), p.op.header_bytes);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + p.op.header_bytes, out));
    p.bth.migrated = true;
    store_headers(p, out);
    EXPECT_EQ(out[1], bytes[1] | std::byte{0x40});
  }
}

const Golden& golden(Opcode opcode) {
  for (const Golden& g : kPackets) {
    if (g.opcode == opcode) return g;
  }
  std::abort();
}

TEST(Golden, ParsesExtensionHeaders) {
  Bytes bytes = from_hex(golden(Opcode::RcReadRequest).hex);
  Packet p = parse(bytes);
  EXPECT_EQ(p.reth.address, 0x000055a38e7415b0u);
  EXPECT_EQ(p.reth.rkey, 0x5d4u);
  EXPECT_EQ(p.reth.length, 100u);

  bytes = from_hex(golden(Opcode::RcWriteFirst).hex);
  p = parse(bytes);
  EXPECT_EQ(p.reth.address, 0x000055aeb9391711u);
  EXPECT_EQ(p.reth.length, 10001u);

  bytes = from_hex(golden(Opcode::RcFetchAdd).hex);
  p = parse(bytes);
  EXPECT_EQ(p.atomic.address, 0x000055dee6ec5000u);
  EXPECT_EQ(p.atomic.rkey, 0x9ecu);
  EXPECT_EQ(p.atomic.swap_or_add, 1u);
  EXPECT_EQ(p.atomic.compare, 0u);

  bytes = from_hex(golden(Opcode::RcAtomicAck).hex);
  p = parse(bytes);
  EXPECT_EQ(p.aeth.kind, AckKind::Ack);
  EXPECT_EQ(p.aeth.msn, 1u);
  EXPECT_EQ(p.original, 0xd458e08f6abfddbbu);

  bytes = from_hex(golden(Opcode::UdSendOnly).hex);
  p = parse(bytes);
  EXPECT_EQ(p.deth.qkey, 0x80010000u);
  EXPECT_EQ(p.deth.source.value(), 1u);

  bytes = from_hex(golden(Opcode::RcAck).hex);
  p = parse(bytes);
  EXPECT_EQ(p.aeth.kind, AckKind::Ack);
  EXPECT_EQ(p.aeth.value, kUnlimitedCredits);
}

TEST(Golden, ParsesThePayloadOfAReadResponse) {
  const Bytes bytes = from_hex(golden(Opcode::RcReadResponseOnly).hex);
  const Packet p = parse(bytes);
  const std::string text(reinterpret_cast<const char*>(p.payload.data()), p.payload.size());
  EXPECT_EQ(text, "rdma-ping-0: ABC");
}

}  // namespace
}  // namespace verbena::wire
