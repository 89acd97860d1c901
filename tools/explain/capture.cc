// Link layers, IP and UDP headers, and the ICRC over the headers as captured.
#include "tools/explain/capture.h"

#include <pcap/pcap.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/crc32.h"
#include "wire/icrc.h"

namespace verbena::explain {
namespace {

using Bytes = std::span<const std::byte>;

constexpr size_t kUdpBytes = 8;
constexpr size_t kIpv6Bytes = 40;
constexpr uint8_t kUdp = 17;
constexpr uint16_t kEtherIpv4 = 0x0800;
constexpr uint16_t kEtherIpv6 = 0x86DD;

// From the field that names the protocol behind it, over VLAN tags, to the IP header.
Bytes behind_ethertype(Bytes frame, size_t at) {
  while (at + 2 <= frame.size()) {
    const uint16_t type = load_be16(frame.data() + at);
    if (type == kEtherIpv4 || type == kEtherIpv6) return frame.subspan(at + 2);
    if (type != 0x8100 && type != 0x88A8) break;
    at += 4;
  }
  return {};
}

wire::Gid gid_of_ipv4(const std::byte* at) {
  uint8_t bytes[4];
  std::memcpy(bytes, at, sizeof bytes);
  return wire::Gid::from_ipv4(bytes);
}

wire::Gid gid_of_ipv6(const std::byte* at) {
  wire::Gid gid;
  std::memcpy(gid.bytes.data(), at, gid.bytes.size());
  return gid;
}

constexpr auto kOnes = [] {
  std::array<std::byte, 8> ones;
  ones.fill(std::byte{0xFF});
  return ones;
}();

// The smallest packet, and the headers, payload, padding and ICRC of the largest.
constexpr size_t kSmallestPacket = wire::kBthBytes + wire::kIcrcBytes;
constexpr size_t kLargestPacket = 4096 + 80;

}  // namespace

Capture::~Capture() {
  if (file_ != nullptr) pcap_close(file_);
}

bool Capture::open(const std::string& file) {
  char reason[PCAP_ERRBUF_SIZE] = "";
  file_ = pcap_open_offline_with_tstamp_precision(file.c_str(), PCAP_TSTAMP_PRECISION_NANO, reason);
  if (file_ == nullptr) {
    error_ = reason;
    return false;
  }
  link_type_ = pcap_datalink(file_);
  switch (link_type_) {
    case DLT_EN10MB:
    case DLT_LINUX_SLL:
    case DLT_LINUX_SLL2:
    case DLT_RAW:
    case DLT_NULL:
    case DLT_LOOP:
    case DLT_IPV4:
    case DLT_IPV6:
      return true;
    default: {
      const char* const name = pcap_datalink_val_to_name(link_type_);
      error_ = std::string("captures of link type ") +
               (name != nullptr ? name : std::to_string(link_type_).c_str()) +
               " are not supported; Ethernet, Linux cooked and raw IP are";
      return false;
    }
  }
}

Bytes Capture::ip_packet_of(Bytes frame) const {
  switch (link_type_) {
    case DLT_EN10MB:
      return behind_ethertype(frame, 12);
    case DLT_LINUX_SLL:
      return behind_ethertype(frame, 14);
    case DLT_LINUX_SLL2:
      return frame.size() < 20 ? Bytes{} : frame.subspan(20);
    case DLT_NULL:
    case DLT_LOOP:
      return frame.size() < 4 ? Bytes{} : frame.subspan(4);
    default:
      return frame;
  }
}

bool Capture::parse(Bytes ip, Datagram& d) {
  if (ip.empty()) return false;
  const unsigned version = load_u8(ip.data()) >> 4;
  size_t ip_bytes = kIpv6Bytes;
  size_t length = 0;  // of the whole IP packet
  if (version == 4) {
    if (ip.size() < 20) return false;
    ip_bytes = (load_u8(ip.data()) & 0xFu) * 4;
    length = load_be16(ip.data() + 2);
    const bool is_fragment = (load_be16(ip.data() + 6) & 0x3FFF) != 0;
    if (ip_bytes < 20 || load_u8(ip.data() + 9) != kUdp || is_fragment) return false;
    d.source = gid_of_ipv4(ip.data() + 12);
    d.destination = gid_of_ipv4(ip.data() + 16);
    d.traffic_class = load_u8(ip.data() + 1);
  } else if (version == 6) {
    if (ip.size() < kIpv6Bytes || load_u8(ip.data() + 6) != kUdp) return false;
    length = kIpv6Bytes + load_be16(ip.data() + 4);
    d.source = gid_of_ipv6(ip.data() + 8);
    d.destination = gid_of_ipv6(ip.data() + 24);
    d.traffic_class = static_cast<uint8_t>(load_be16(ip.data()) >> 4);
  } else {
    return false;
  }
  const size_t headers = ip_bytes + kUdpBytes;
  if (ip.size() < headers || length < headers + kSmallestPacket ||
      load_be16(ip.data() + ip_bytes + 2) != wire::kRoceUdpPort) {
    return false;
  }
  d.is_whole = ip.size() >= length;
  d.length = length - headers - wire::kIcrcBytes;
  const Bytes datagram = ip.subspan(headers, std::min(length, ip.size()) - headers);
  d.icrc_is_good = true;
  if (!d.is_whole) {  // the padding is behind the payload, so a part is told without it
    d.bytes = datagram.first(std::min(datagram.size(), d.length) & ~size_t{3});
    return true;
  }
  d.bytes = datagram.first(d.length);
  headers_ = {{ip.begin(), ip.begin() + static_cast<ptrdiff_t>(headers)}, ip_bytes, version == 4};
  if (!has_good_icrc(datagram, 0)) split(datagram, d);
  return true;
}

// Fields that routers change count as ones. `segment`: of a batch, whose packets have consecutive
// IPv4 ids.
bool Capture::has_good_icrc(Bytes datagram, uint32_t segment) {
  const size_t headers = headers_.ip_and_udp.size();
  masked_.assign(headers_.ip_and_udp.begin(), headers_.ip_and_udp.end());
  masked_.insert(masked_.end(), datagram.begin(), datagram.end() - wire::kIcrcBytes);
  std::byte* const ip = masked_.data();
  std::byte* const udp = ip + headers_.ip_bytes;
  if (headers_.is_v4) {
    store_u8(ip + 1, 0xFF);
    store_be16(ip + 2, static_cast<uint16_t>(headers + datagram.size()));
    store_be16(ip + 4, static_cast<uint16_t>(load_be16(ip + 4) + segment));
    store_u8(ip + 8, 0xFF);
    store_be16(ip + 10, 0xFFFF);
  } else {
    store_be32(ip, load_be32(ip) | 0x0FFFFFFF);
    store_be16(ip + 4, static_cast<uint16_t>(kUdpBytes + datagram.size()));
    store_u8(ip + 7, 0xFF);
  }
  store_be16(udp + 4, static_cast<uint16_t>(kUdpBytes + datagram.size()));
  store_be16(udp + 6, 0xFFFF);
  if (masked_.size() > headers + wire::kBthReservedOffset)
    masked_[headers + wire::kBthReservedOffset] = std::byte{0xFF};
  return crc32(crc32(0, kOnes), masked_) ==
         wire::load_icrc(datagram.data() + datagram.size() - wire::kIcrcBytes);
}

// The size of the first packet is the one that makes its ICRC right. If there is none, the ICRC is
// wrong, or that of the first packet of a batch.
void Capture::split(Bytes datagrams, Datagram& first) {
  const auto begins_a_batch = [&](size_t stride) {
    return stride >= kSmallestPacket && stride < datagrams.size() &&
           has_good_icrc(datagrams.first(stride), 0);
  };
  size_t stride = begins_a_batch(stride_) ? stride_ : 0;
  for (size_t size = kSmallestPacket; stride == 0 && size <= kLargestPacket; size += 4) {
    if (begins_a_batch(size)) stride = size;
  }
  first.icrc_is_good = stride != 0;
  if (stride == 0) return;
  stride_ = stride;
  segment_ = 0;
  segments_ = datagrams.subspan(stride);
  first.length = stride - wire::kIcrcBytes;
  first.bytes = datagrams.first(first.length);
}

// The rest of a batch.
bool Capture::next_segment(Datagram& datagram) {
  if (segments_.size() < kSmallestPacket) return false;
  const Bytes segment = segments_.first(std::min(stride_, segments_.size()));
  segments_ = segments_.subspan(segment.size());
  ++segment_;
  datagram.icrc_is_good = has_good_icrc(segment, segment_);
  datagram.length = segment.size() - wire::kIcrcBytes;
  datagram.bytes = segment.first(datagram.length);
  return true;
}

bool Capture::next(Datagram& datagram) {
  if (next_segment(datagram)) return true;  // of the same packet of the file
  segments_ = {};
  for (;;) {
    pcap_pkthdr* header = nullptr;
    const u_char* bytes = nullptr;
    const int result = pcap_next_ex(file_, &header, &bytes);
    if (result == PCAP_ERROR) error_ = pcap_geterr(file_);
    if (result != 1) return false;
    int64_t ns = 0;
    if (__builtin_mul_overflow(int64_t{header->ts.tv_sec}, 1'000'000'000, &ns)) ns = 0;
    ns += header->ts.tv_usec;
    if (first_ns_ < 0) first_ns_ = ns;
    const Bytes frame(reinterpret_cast<const std::byte*>(bytes), header->caplen);
    if (parse(ip_packet_of(frame), datagram)) {
      datagram.ns = ns - first_ns_;
      return true;
    }
    ++other_packets_;
  }
}

}  // namespace verbena::explain
