// The wire formats, byte by byte, and rejected data.
#include "rsocket/wire.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/prng.h"

namespace verbena::rsocket {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

const std::vector<std::byte> kConnectBytes = bytes_of({
    1, 2, 0x01, 0x80, 0,    0,    0,    3,  // version, iomaps; credits
    0, 0, 0x7f, 0x11, 0x22, 0x33, 0x44, 0x50, 0, 0, 0xab, 0xcd, 0, 0, 0, 2,  // list of buffers
    0, 0, 0x7f, 0x55, 0x66, 0x77, 0x88, 0x00, 0, 0, 0xef, 0x01, 0, 1, 0, 0,  // first buffer
});

ConnectData connect_data() {
  return {.big_endian = false,
          .credits = 384,
          .iomap_count = 3,
          .buffer_list = {0x7f1122334450, 0xabcd, 2},
          .first_buffer = {0x7f5566778800, 0xef01, 65536}};
}

TEST(Wire, StoresConnectData) {
  std::array<std::byte, ConnectData::kSize> stored;
  connect_data().store(stored.data());
  EXPECT_TRUE(std::equal(stored.begin(), stored.end(), kConnectBytes.begin(), kConnectBytes.end()));
}

TEST(Wire, LoadsConnectDataFromPaddedPrivateData) {
  std::vector<std::byte> padded = kConnectBytes;
  padded.resize(196);
  const auto loaded = ConnectData::load(padded);
  ASSERT_TRUE(loaded);
  EXPECT_FALSE(loaded->big_endian);
  EXPECT_EQ(loaded->credits, 384);
  EXPECT_EQ(loaded->iomap_count, 3u);
  EXPECT_EQ(loaded->buffer_list.address, 0x7f1122334450u);
  EXPECT_EQ(loaded->first_buffer.length, 65536u);
  EXPECT_EQ(loaded->first_buffer.key, 0xef01u);
  EXPECT_EQ(loaded->buffer_entry(1), 0x7f1122334460u);
  EXPECT_EQ(loaded->iomap_entry(1), 0x7f1122334470u + 24);
}

TEST(Wire, LoadsTheBigEndianFlag) {
  std::vector<std::byte> data = kConnectBytes;
  data[1] = std::byte{3};
  EXPECT_TRUE(ConnectData::load(data)->big_endian);
}

TEST(Wire, IgnoresTheIomapCountWithoutItsFlag) {
  std::vector<std::byte> data = kConnectBytes;
  data[1] = std::byte{0};
  EXPECT_EQ(ConnectData::load(data)->iomap_count, 0u);
}

TEST(Wire, RejectsOtherVersionsShortDataAndEmptyLists) {
  for (const int version : {0, 2, 255}) {
    std::vector<std::byte> data = kConnectBytes;
    data[0] = static_cast<std::byte>(version);
    EXPECT_FALSE(ConnectData::load(data)) << version;
  }
  for (size_t size = 0; size < ConnectData::kSize; ++size) {
    EXPECT_FALSE(ConnectData::load(std::span(kConnectBytes).first(size))) << size;
  }
  std::vector<std::byte> data = kConnectBytes;
  data[23] = std::byte{0};
  EXPECT_FALSE(ConnectData::load(data));
}

TEST(Wire, EncodesIomapCountsAbove128InUnits) {
  struct Case {
    uint32_t count;
    uint8_t code;
    uint32_t meant;
  };
  for (const Case& c :
       {Case{0, 0, 0}, Case{1, 1, 1}, Case{128, 128, 128}, Case{129, 128, 128}, Case{255, 128, 128},
        Case{256, 129, 256}, Case{600, 130, 512}, Case{32512, 255, 32512}, Case{65535, 255, 32512},
        Case{0xffffffff, 255, 32512}}) {
    EXPECT_EQ(iomap_count_code(c.count), c.code) << c.count;
    EXPECT_EQ(iomap_count_of(c.code), c.meant) << c.count;
  }
}

TEST(Wire, EncodesTheOperationInThreeBits) {
  EXPECT_EQ((Message{Op::kData, 1000}).encode(), 1000u);
  EXPECT_EQ((Message{Op::kCredits, 0xffff}).encode(), 0x8000ffffu);
  EXPECT_EQ((Message{Op::kIomap, 7}).encode(), 0xc0000007u);
  EXPECT_EQ((Message{Op::kControl, 2}).encode(), 0xe0000002u);
  const Message message = Message::decode(0x9fffffff);
  EXPECT_EQ(message.op, Op::kCredits);
  EXPECT_EQ(message.value, 0x1fffffffu);
}

TEST(Wire, StoresEntriesInTheByteOrderOfTheReader) {
  const IomapEntry entry{0x0102030405060708, {0x1112131415161718, 0x21222324, 0x31323334}};
  std::array<std::byte, IomapEntry::kSize> stored;
  entry.store(stored.data(), false);
  EXPECT_EQ(stored[0], std::byte{0x08});
  const IomapEntry loaded = IomapEntry::load(stored.data());
  EXPECT_EQ(loaded.offset, entry.offset);
  EXPECT_EQ(loaded.buffer.address, entry.buffer.address);
  EXPECT_EQ(loaded.buffer.key, entry.buffer.key);
  EXPECT_EQ(loaded.buffer.length, entry.buffer.length);
  entry.store(stored.data(), true);
  EXPECT_EQ(stored[0], std::byte{0x01});
  EXPECT_EQ(stored[8], std::byte{0x11});
  EXPECT_EQ(stored[16], std::byte{0x21});
  EXPECT_EQ(stored[20], std::byte{0x31});
}

SocketAddress v4(const char* text, uint16_t port) {
  in_addr address;
  EXPECT_EQ(inet_pton(AF_INET, text, &address), 1);
  return SocketAddress::make_v4(address, port);
}

SocketAddress v6(const char* text, uint16_t port, uint32_t flow = 0) {
  in6_addr address;
  EXPECT_EQ(inet_pton(AF_INET6, text, &address), 1);
  return SocketAddress::make_v6(address, port, flow);
}

TEST(Wire, DatagramHeadersHoldTheSource) {
  std::array<std::byte, DatagramHeader::kMaxSize> stored;
  const DatagramHeader header4{v4("10.1.2.3", 7174)};
  header4.store(stored.data());
  const auto expected = bytes_of({4, 8, 0x1c, 0x06, 10, 1, 2, 3});
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), stored.begin()));
  EXPECT_EQ(DatagramHeader::load(stored)->source, header4.source);

  const DatagramHeader header6{v6("fe80::1", 9, htonl(0x12345))};
  header6.store(stored.data());
  EXPECT_EQ(stored[0], std::byte{6});
  EXPECT_EQ(stored[1], std::byte{24});
  EXPECT_EQ(stored[3], std::byte{9});
  EXPECT_EQ(stored[5], std::byte{0x01});
  EXPECT_EQ(stored[8], std::byte{0xfe});
  EXPECT_EQ(stored[23], std::byte{0x01});
  EXPECT_EQ(DatagramHeader::load(stored)->source, header6.source);
}

TEST(Wire, RejectsInvalidDatagramHeaders) {
  std::array<std::byte, DatagramHeader::kMaxSize> stored;
  DatagramHeader{v6("::1", 9)}.store(stored.data());
  for (size_t size = 0; size < stored.size(); ++size) {
    EXPECT_FALSE(DatagramHeader::load(std::span(stored).first(size))) << size;
  }
  DatagramHeader{v4("1.2.3.4", 9)}.store(stored.data());
  EXPECT_FALSE(DatagramHeader::load(std::span(stored).first(7)));
  for (const auto& [version, length] :
       std::vector<std::pair<int, int>>{{4, 24}, {6, 8}, {4, 0}, {4, 255}, {5, 8}, {0, 8}}) {
    stored[0] = static_cast<std::byte>(version);
    stored[1] = static_cast<std::byte>(length);
    EXPECT_FALSE(DatagramHeader::load(stored)) << version << " " << length;
  }
}

TEST(Wire, UdpHeadersHoldTheQueuePair) {
  std::array<std::byte, UdpHeader::kMaxSize> stored;
  const UdpHeader header{UdpHeader::Op::kReply, 0xab123456, v4("10.1.2.3", 0)};
  header.store(stored.data());
  const auto expected =
      bytes_of({0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0x12, 0x34, 0x56, 10, 1, 2, 3});
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), stored.begin()));
  const auto loaded = UdpHeader::load(std::span(stored).first(16), AF_INET);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->op, UdpHeader::Op::kReply);
  EXPECT_EQ(loaded->qpn, 0x123456u);

  UdpHeader{UdpHeader::Op::kData, 5, v6("::1", 0)}.store(stored.data());
  EXPECT_EQ(stored[6], std::byte{28});
  EXPECT_TRUE(UdpHeader::load(stored, AF_INET6));
}

TEST(Wire, RejectsOtherUdpDatagrams) {
  std::array<std::byte, UdpHeader::kMaxSize> good;
  UdpHeader{UdpHeader::Op::kData, 5, v4("1.2.3.4", 0)}.store(good.data());
  EXPECT_FALSE(UdpHeader::load(good, AF_INET6));
  EXPECT_FALSE(UdpHeader::load(std::span(good).first(15), AF_INET));
  for (const size_t at : {0u, 3u, 4u, 5u, 6u}) {
    auto bad = good;
    bad[at] ^= std::byte{0x41};
    EXPECT_FALSE(UdpHeader::load(bad, AF_INET)) << at;
  }
}

TEST(Wire, ReadsRandomBytesWithinTheirBounds) {
  // Heap memory of the exact size, so that a sanitizer or valgrind detects a read beyond it.
  Prng prng(1);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> random(prng.below(48));
    for (std::byte& byte : random) byte = static_cast<std::byte>(prng.below(8));
    if (!random.empty() && prng.chance(0.5)) random[0] = static_cast<std::byte>(prng.below(7));
    const auto datagram = DatagramHeader::load(random);
    EXPECT_TRUE(!datagram || datagram->size() <= random.size());
    const auto udp = UdpHeader::load(random, AF_INET);
    EXPECT_TRUE(!udp || udp->size() <= random.size());
    EXPECT_TRUE(!ConnectData::load(random) || ConnectData::kSize <= random.size());
  }
}

TEST(Address, MappedFormsNameTheSameHost) {
  const SocketAddress mapped = v6("::ffff:10.0.0.1", 80);
  EXPECT_EQ(mapped.unmapped(), v4("10.0.0.1", 80));
  EXPECT_EQ(v4("10.0.0.1", 80).seen_by(AF_INET6), mapped);
  EXPECT_EQ(v4("10.0.0.1", 80).seen_by(AF_INET), v4("10.0.0.1", 80));
  EXPECT_EQ(v6("::1", 80).unmapped(), v6("::1", 80));
  EXPECT_NE(v4("10.0.0.1", 80), v4("10.0.0.1", 81));
  EXPECT_EQ(v6("::1", 80, 5).hash(), v6("::1", 80).hash());
}

TEST(Address, RejectsInvalidAddressesOfTheApplication) {
  sockaddr_in6 address{};
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  EXPECT_EQ(SocketAddress::from(nullptr, 16).error().code, EFAULT);
  EXPECT_EQ(SocketAddress::from(generic, 1).error().code, EINVAL);
  EXPECT_EQ(SocketAddress::from(generic, sizeof address).error().code, EAFNOSUPPORT);
  address.sin6_family = AF_INET;
  EXPECT_EQ(SocketAddress::from(generic, 15).error().code, EINVAL);
  EXPECT_TRUE(SocketAddress::from(generic, 16).ok());
  address.sin6_family = AF_INET6;
  EXPECT_EQ(SocketAddress::from(generic, 23).error().code, EINVAL);
  EXPECT_TRUE(SocketAddress::from(generic, 24).ok());
}

}  // namespace
}  // namespace verbena::rsocket
