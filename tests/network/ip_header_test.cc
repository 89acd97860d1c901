// ECN marks and flows of IPv4 and IPv6 packets.
#include "tests/network/ip_header.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::network {
namespace {

using Bytes = std::vector<uint8_t>;

// The sum over a header with a right checksum is 0xFFFF.
uint16_t header_sum(const Bytes& packet) {
  uint32_t sum = 0;
  for (size_t i = 0; i < 20; i += 2) sum += static_cast<uint32_t>(packet[i] << 8 | packet[i + 1]);
  while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

// From 192.0.2.2, UDP port 0xC001, with a right checksum.
Bytes ipv4(uint8_t traffic_class, uint8_t salt = 0) {
  Bytes packet{0x45, traffic_class, 0, 28, 0x12, salt, 0x40, 0,  64,  17, 0, 0, 192, 0, 2,
               2,    192,           0, 2,  1,    0xC0, 0x01, 18, 183, 0,  8, 0, 0};
  const auto checksum = static_cast<uint16_t>(~header_sum(packet));
  packet[10] = static_cast<uint8_t>(checksum >> 8);
  packet[11] = static_cast<uint8_t>(checksum);
  return packet;
}

// From 2001:db8::2, UDP port 0xC001.
Bytes ipv6(uint8_t traffic_class) {
  Bytes packet(48);
  packet[0] = static_cast<uint8_t>(0x60 | traffic_class >> 4);
  packet[1] = static_cast<uint8_t>(traffic_class << 4 | 0x5);  // and a flow label
  packet[6] = 17;
  packet[8] = 0x20, packet[9] = 0x01, packet[10] = 0x0D, packet[11] = 0xB8, packet[23] = 2;
  packet[40] = 0xC0, packet[41] = 0x01;
  return packet;
}

TEST(MarkCongestion, ChangesEctOfIpv4AndMendsTheChecksum) {
  for (int salt = 0; salt < 256; ++salt) {
    for (const int ect : {1, 2}) {
      Bytes packet = ipv4(static_cast<uint8_t>(0x68 | ect), static_cast<uint8_t>(salt));
      ASSERT_EQ(header_sum(packet), 0xFFFF);
      EXPECT_TRUE(mark_congestion(packet));
      EXPECT_EQ(packet[1], 0x6B);
      EXPECT_EQ(header_sum(packet), 0xFFFF);
    }
  }
}

TEST(MarkCongestion, ChangesEctOfIpv6Only) {
  for (const int ect : {1, 2}) {
    Bytes packet = ipv6(static_cast<uint8_t>(0x68 | ect));
    EXPECT_TRUE(mark_congestion(packet));
    EXPECT_EQ(packet, ipv6(0x6B));
  }
}

TEST(MarkCongestion, LeavesOtherPacketsUnchanged) {
  for (const Bytes& original : {ipv4(0x68), ipv4(0x6B), ipv6(0x68), ipv6(0x6B), Bytes{},
                                Bytes(10, 0x46), Bytes(30, 0x66), Bytes(60, 0x12)}) {
    Bytes packet = original;
    EXPECT_FALSE(mark_congestion(packet));
    EXPECT_EQ(packet, original);
  }
}

TEST(FlowOf, NamesProtocolAddressAndPortOfTheSender) {
  EXPECT_EQ(source_text(flow_of(ipv4(0))), "192.0.2.2:49153");
  EXPECT_EQ(source_text(flow_of(ipv6(0))), "[2001:db8::2]:49153");
  EXPECT_EQ(protocol_name(flow_of(ipv4(0)).protocol), "udp");
  EXPECT_EQ(flow_of(ipv4(2)), flow_of(ipv4(3)));
}

TEST(FlowOf, ReadsNoPortBehindTheEndOrInALaterFragment) {
  Bytes fragment = ipv4(0);
  fragment[7] = 1;
  EXPECT_EQ(flow_of(fragment).port, 0);
  Bytes header_only = ipv4(0);
  header_only.resize(20);
  EXPECT_EQ(flow_of(header_only).port, 0);
  Bytes long_header = ipv4(0);
  long_header[0] = 0x4F;
  EXPECT_EQ(flow_of(long_header).port, 0);
  EXPECT_EQ(flow_of(Bytes(10, 0x45)), Flow{});
}

}  // namespace
}  // namespace verbena::network
