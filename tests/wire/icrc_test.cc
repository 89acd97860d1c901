// The ICRC of packets that the Linux kernel's Soft-RoCE sent (whole IP packets, as captured), and
// of corrupted copies.
#include "wire/icrc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace verbena::wire {
namespace {

struct Golden {
  const char* what;
  const char* hex;
};

constexpr Golden kCaptured[] = {
    {"RC SEND only, no payload",
     "4500003093424000401192dc0a4d00030a4d0002d69312b7001c00000400ffff0000001280dcb57f"
     "000010001f9b49be"},
    {"RC RDMA WRITE only",
     "450000a0998c400040118c220a4d00020a4d0003c62a12b7008c00000a00ffff000000118088d0e0"
     "000055a38e73eda0000004550000006472646d612d70696e672d303a204142434445464748494a4b"
     "4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f70717273"
     "7475767778797a4142434445464748494a4b4c4d4e4f505152535455565758595a5b5c00315151b2"},
    {"RC RDMA READ request",
     "4500003c9989400040118c890a4d00020a4d0003c62a12b7002800000c00ffff000000118088d0de"
     "000055a38e7415b0000005d400000064a1fe77c2"},
    {"RC RDMA READ response only",
     "45000094915b40004011945f0a4d00030a4d0002c62a12b7008000001000ffff000000110088d0de"
     "1f00000172646d612d70696e672d303a204142434445464748494a4b4c4d4e4f5051525354555657"
     "58595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a4142434445"
     "464748494a4b4c4d4e4f505152535455565758595a5b5c009f9b06b2"},
    {"RC acknowledge",
     "450000309988400040118c960a4d00020a4d0003c62a12b7001c00001100ffff00000011000985c9"
     "1f0000016c744ac6"},
    {"RC atomic acknowledge",
     "45000038a27e4000401183980a4d00020a4d0003c1e412b7002400001200ffff00000016004babfb"
     "1f000001d458e08f6abfddbbc44f1f2a"},
    {"RC fetch and add",
     "4500004898ff400040118d070a4d00030a4d0002c1e412b7003400001400ffff00000016804babfb"
     "000055dee6ec5000000009ec000000000000000100000000000000003c7807e8"},
};

// Built by hand with a byte-by-byte CRC. Traffic class, flow label, hop limit and UDP checksum
// differ from the values that the ICRC assumes.
constexpr Golden kIpv6 = {
    "RC SEND only over IPv6",
    "6a5123450024113dfe800000000000000000000000000001fe800000000000000000000000000002"
    "c12312b7002412340440ffff00010007800004d268656c6c6f2c20495076362179955923"};

std::vector<std::byte> from_hex(const char* hex) {
  std::vector<std::byte> bytes;
  const std::string text(hex);
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// A captured packet as a UDP socket receives it.
struct Received {
  std::vector<std::byte> ip;
  IcrcFlow flow;
  std::span<std::byte> datagram;
  uint16_t id = 0;

  explicit Received(std::vector<std::byte> packet) : ip(std::move(packet)) {
    const bool v4 = load_u8(ip.data()) >> 4 == 4;
    const size_t udp = v4 ? 20 : 40;
    if (v4) {
      flow.source = Gid::from_ipv4(&ip[12]);
      flow.destination = Gid::from_ipv4(&ip[16]);
      id = load_be16(&ip[4]);
    } else {
      flow.source = Gid::from_ipv6(&ip[8]);
      flow.destination = Gid::from_ipv6(&ip[24]);
    }
    flow.source_port = load_be16(&ip[udp]);
    flow.destination_port = load_be16(&ip[udp + 2]);
    datagram = std::span(ip).subspan(udp + 8);
  }
  IcrcMatch check(uint32_t segment) { return IcrcVerifier(flow).check(datagram, segment); }
};

TEST(Icrc, AcceptsPacketsOfTheKernelWithoutKnowingTheirIpId) {
  for (const Golden& g : kCaptured) {
    Received r(from_hex(g.hex));
    ASSERT_NE(r.id, 0);
    EXPECT_EQ(r.check(0), IcrcMatch::Solved) << g.what;
    EXPECT_EQ(r.check(17), IcrcMatch::Solved) << g.what;
    EXPECT_EQ(r.check(5000), IcrcMatch::Solved) << g.what;
  }
}

TEST(Icrc, AcceptsIpv6) {
  Received r(from_hex(kIpv6.hex));
  EXPECT_EQ(r.check(0), IcrcMatch::Known);
  EXPECT_EQ(r.check(3), IcrcMatch::Known);  // IPv6 has no ID
}

// The check may accept a bit flip if some IP ID explains it. Over all single bits of all packets
// this happens almost never, and always for the same bits.
TEST(Icrc, RejectsSingleBitErrors) {
  size_t flips = 0;
  size_t accepted = 0;
  for (const Golden& g : kCaptured) {
    Received r(from_hex(g.hex));
    for (size_t bit = 0; bit < r.datagram.size() * 8; ++bit) {
      if (bit / 8 == kBthReservedOffset) continue;
      r.datagram[bit / 8] ^= std::byte{1} << (bit % 8);
      ++flips;
      accepted += r.check(0) != IcrcMatch::No;
      r.datagram[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    EXPECT_NE(r.check(0), IcrcMatch::No) << "the check modified " << g.what;
  }
  EXPECT_GT(flips, 3000u);
  EXPECT_LE(accepted, 2u);

  Received v6(from_hex(kIpv6.hex));
  for (size_t bit = 0; bit < v6.datagram.size() * 8; ++bit) {
    if (bit / 8 == kBthReservedOffset) continue;
    v6.datagram[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(v6.check(0), IcrcMatch::No) << bit;
    v6.datagram[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(Icrc, IgnoresTheReservedByteThatSwitchesMayWrite) {
  for (const Golden& g : kCaptured) {
    Received r(from_hex(g.hex));
    r.datagram[kBthReservedOffset] ^= std::byte{0xC0};
    EXPECT_EQ(r.check(0), IcrcMatch::Solved);
    EXPECT_EQ(r.datagram[kBthReservedOffset], std::byte{0xC0});
  }
}

TEST(Icrc, RejectsAnotherFlow) {
  for (const Golden& g : kCaptured) {
    Received r(from_hex(g.hex));
    r.flow.source_port ^= 1;
    EXPECT_EQ(r.check(0), IcrcMatch::No) << g.what;
  }
}

TEST(Icrc, SenderAndReceiverAgreeOnEverySegment) {
  Received r(from_hex(kCaptured[1].hex));
  const uint32_t prefix = icrc_prefix(r.flow, r.datagram.size());
  for (uint32_t id = 0; id < kMaxKnownIds; ++id) {
    const uint32_t crc =
        icrc_over_bth(icrc_prefix_with_id(prefix, id), r.datagram.first(r.datagram.size() - 4));
    store_icrc(r.datagram.data() + r.datagram.size() - 4, crc);
    EXPECT_EQ(r.check(id), IcrcMatch::Known);
    // At another position of its GSO batch the ID differs, except that 0 is always expected.
    EXPECT_EQ(r.check(id + 1), id == 0 ? IcrcMatch::Known : IcrcMatch::Solved);
  }
}

TEST(Icrc, AcceptsAClearDontFragmentBit) {
  for (const int id : {0, 1, 0x1234, 0xFFFF}) {
    Received r(from_hex(kCaptured[2].hex));
    // The whole packet as a sender without DF computes the sum.
    std::vector<std::byte> masked(8 + r.ip.size(), std::byte{0xFF});
    std::ranges::copy(r.ip, masked.begin() + 8);
    std::byte* const ip = masked.data() + 8;
    store_be16(ip + 4, static_cast<uint16_t>(id));
    store_be16(ip + 6, 0);
    for (const size_t at : {1, 8, 10, 11, 26, 27, 32}) ip[at] = std::byte{0xFF};
    const auto covered = std::span(masked).first(masked.size() - kIcrcBytes);
    store_icrc(r.datagram.data() + r.datagram.size() - 4, crc32(0, covered));
    EXPECT_EQ(r.check(0), id == 0 ? IcrcMatch::Known : IcrcMatch::Solved) << id;
  }
}

TEST(Icrc, StoresIpAndUdpHeadersForTools) {
  for (const bool v4 : {true, false}) {
    Received r(from_hex(v4 ? kCaptured[0].hex : kIpv6.hex));
    std::array<std::byte, 48> headers{};
    const size_t n = store_ip_udp_headers(r.flow, 0x20, 63, r.datagram.size(), headers.data());
    ASSERT_EQ(n, v4 ? 28u : 48u);
    std::vector<std::byte> whole(headers.begin(), headers.begin() + static_cast<ptrdiff_t>(n));
    whole.insert(whole.end(), r.datagram.begin(), r.datagram.end());
    Received again(whole);
    EXPECT_EQ(again.flow.source, r.flow.source);
    EXPECT_EQ(again.flow.destination, r.flow.destination);
    EXPECT_EQ(again.flow.source_port, r.flow.source_port);
    if (!v4) continue;
    uint32_t sum = 0;
    for (size_t i = 0; i < 20; i += 2) sum += load_be16(headers.data() + i);
    EXPECT_EQ((sum & 0xFFFF) + (sum >> 16), 0xFFFFu);
  }
}

}  // namespace
}  // namespace verbena::wire
