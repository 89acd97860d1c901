// Encodes and decodes the values of rsocket/wire.h.
#include "rsocket/wire.h"

#include <cstring>

#include "base/bytes.h"

namespace verbena::rsocket {

namespace {

constexpr uint8_t kFlagBigEndian = 1;
constexpr uint8_t kFlagIomaps = 2;
constexpr uint32_t kUdpTag = 0x55555555;

uint32_t load32(const std::byte* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint64_t load64(const std::byte* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void store32(std::byte* to, uint32_t value, bool swapped) {
  if (swapped) value = __builtin_bswap32(value);
  std::memcpy(to, &value, sizeof value);
}

void store64(std::byte* to, uint64_t value, bool swapped) {
  if (swapped) value = __builtin_bswap64(value);
  std::memcpy(to, &value, sizeof value);
}

RemoteBuffer load_be(const std::byte* from) {
  return {.address = load_be64(from), .key = load_be32(from + 8), .length = load_be32(from + 12)};
}

void store_be(std::byte* to, const RemoteBuffer& buffer) {
  store_be64(to, buffer.address);
  store_be32(to + 8, buffer.key);
  store_be32(to + 12, buffer.length);
}

}  // namespace

RemoteBuffer RemoteBuffer::load(const std::byte* from) {
  return {.address = load64(from), .key = load32(from + 8), .length = load32(from + 12)};
}

void RemoteBuffer::store(std::byte* to, bool swapped) const {
  store64(to, address, swapped);
  store32(to + 8, key, swapped);
  store32(to + 12, length, swapped);
}

IomapEntry IomapEntry::load(const std::byte* from) {
  return {.offset = load64(from), .buffer = RemoteBuffer::load(from + 8)};
}

void IomapEntry::store(std::byte* to, bool swapped) const {
  store64(to, offset, swapped);
  buffer.store(to + 8, swapped);
}

std::optional<ConnectData> ConnectData::load(std::span<const std::byte> from) {
  if (from.size() < kSize || load_u8(&from[0]) != kVersion) return std::nullopt;
  const uint8_t flags = load_u8(&from[1]);
  ConnectData data{
      .big_endian = (flags & kFlagBigEndian) != 0,
      .credits = load_be16(&from[2]),
      .iomap_count = flags & kFlagIomaps ? iomap_count_of(load_u8(&from[7])) : 0,
      .buffer_list = load_be(&from[8]),
      .first_buffer = load_be(&from[24]),
  };
  if (data.buffer_list.length == 0) return std::nullopt;
  return data;
}

void ConnectData::store(std::byte* to) const {
  std::memset(to, 0, kSize);
  store_u8(to, kVersion);
  store_u8(to + 1, static_cast<uint8_t>(kFlagIomaps | (big_endian ? kFlagBigEndian : 0)));
  store_be16(to + 2, credits);
  store_u8(to + 7, iomap_count_code(iomap_count));
  store_be(to + 8, buffer_list);
  store_be(to + 24, first_buffer);
}

uint8_t iomap_count_code(uint32_t count) {
  if (count <= 128) return static_cast<uint8_t>(count);
  const uint32_t units = count / 256;
  return static_cast<uint8_t>(0x80 | (units < 127 ? units : 127));
}

uint32_t iomap_count_of(uint8_t code) { return code <= 128 ? code : uint32_t{code & 0x7fu} * 256; }

void DatagramHeader::store(std::byte* to) const {
  const bool v4 = source.family() == AF_INET;
  store_u8(to, v4 ? 4 : 6);
  store_u8(to + 1, static_cast<uint8_t>(size()));
  store_be16(to + 2, source.port());
  if (v4) {
    std::memcpy(to + 4, &source.v4().sin_addr, 4);
  } else {
    std::memcpy(to + 4, &source.v6().sin6_flowinfo, 4);
    std::memcpy(to + 8, &source.v6().sin6_addr, 16);
  }
}

std::optional<DatagramHeader> DatagramHeader::load(std::span<const std::byte> from) {
  if (from.size() < 8) return std::nullopt;
  const uint8_t version = load_u8(&from[0]);
  const uint8_t length = load_u8(&from[1]);
  const uint16_t port = load_be16(&from[2]);
  if (version == 4 && length == 8) {
    in_addr address;
    std::memcpy(&address, &from[4], 4);
    return DatagramHeader{SocketAddress::make_v4(address, port)};
  }
  if (version == 6 && length == 24 && from.size() >= 24) {
    in6_addr address;
    uint32_t flow;
    std::memcpy(&flow, &from[4], 4);
    std::memcpy(&address, &from[8], 16);
    return DatagramHeader{SocketAddress::make_v6(address, port, flow)};
  }
  return std::nullopt;
}

void UdpHeader::store(std::byte* to) const {
  const bool v4 = source.family() == AF_INET;
  store_be32(to, kUdpTag);
  store_u8(to + 4, v4 ? 4 : 6);
  store_u8(to + 5, static_cast<uint8_t>(op));
  store_u8(to + 6, static_cast<uint8_t>(size()));
  store_u8(to + 7, 0);
  store_be32(to + 8, qpn & 0xffffff);
  if (v4) {
    std::memcpy(to + 12, &source.v4().sin_addr, 4);
  } else {
    std::memcpy(to + 12, &source.v6().sin6_addr, 16);
  }
}

std::optional<UdpHeader> UdpHeader::load(std::span<const std::byte> from, int family) {
  const bool v4 = family == AF_INET;
  const size_t size = v4 ? 16 : 28;
  if (from.size() < size || load_be32(&from[0]) != kUdpTag) return std::nullopt;
  if (load_u8(&from[4]) != (v4 ? 4 : 6) || load_u8(&from[6]) != size) return std::nullopt;
  const Op op{load_u8(&from[5])};
  if (op != Op::kData && op != Op::kReply) return std::nullopt;
  UdpHeader header{.op = op, .qpn = load_be32(&from[8]) & 0xffffff, .source = {}};
  if (v4) {
    in_addr address;
    std::memcpy(&address, &from[12], 4);
    header.source = SocketAddress::make_v4(address, 0);
  } else {
    in6_addr address;
    std::memcpy(&address, &from[12], 16);
    header.source = SocketAddress::make_v6(address, 0, 0);
  }
  return header;
}

}  // namespace verbena::rsocket
