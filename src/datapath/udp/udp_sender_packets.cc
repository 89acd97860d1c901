// Copies packets into batches and computes their ICRCs.
#include <algorithm>
#include <cstring>

#include "datapath/udp/udp_sender.h"

namespace verbena::datapath {
namespace {

// Up to this size, one CRC over the packet as copied is faster than one that copies the payload and
// another one for the header.
constexpr size_t kSmallPacket = 1536;

}  // namespace

// Null: the packet is dropped.
UdpPath* UdpSender::path_of(const wire::TxPacket& packet, size_t bytes) {
  UdpPath* const path = find(packet.path);
  if (path != nullptr && bytes <= kLargestPacket && room() > 0) [[likely]]
    return path;
  ++counters_.send_drops;
  return nullptr;
}

// The CRC in front of the BTH of the latest packet of the batch.
uint32_t UdpSender::icrc_prefix_of(const GsoBatch& batch, size_t bytes) {
  const uint32_t prefix = batch.path->icrc.of(bytes);
  const bool v4 = batch.path->icrc.flow().source.is_ipv4();
  return v4 ? wire::icrc_prefix_with_id(prefix, batch.segments - 1) : prefix;
}

void UdpSender::push(const wire::TxPacket& packet) {
  size_t payload_bytes = 0;
  for (const auto& part : packet.payload) payload_bytes += part.size();
  const size_t covered = packet.header_bytes + payload_bytes + packet.pad;
  const size_t bytes = covered + wire::kIcrcBytes;
  UdpPath* const path = path_of(packet, bytes);
  if (path == nullptr) return;
  const GsoBatch& batch = batch_for(*path, packet, bytes);
  uint32_t crc = icrc_prefix_of(batch, bytes);

  std::byte* const out = batch.end - bytes;
  std::byte* to = out + packet.header_bytes;
  std::memcpy(out, packet.header.data(), packet.header_bytes);
  std::memset(out + covered - packet.pad, 0, packet.pad);
  if (bytes <= kSmallPacket) {
    for (const auto& part : packet.payload) {
      if (!part.empty()) std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
    crc = wire::icrc_over_bth(crc, {out, covered});
  } else {
    // The CRC of a few bytes takes as long as that of hundreds, so the bytes before the next cache
    // line are computed together with the header.
    const std::span<const std::byte> first = packet.payload.front();
    const size_t with_header =
        std::min(first.size(), -reinterpret_cast<uintptr_t>(to) % kCacheLine);
    if (with_header != 0) std::memcpy(to, first.data(), with_header);
    to += with_header;
    crc = wire::icrc_over_bth(crc, {out, to});
    // The receiver's processor reads a batch that the kernel does not copy.
    const bool past_caches = batch.zero_copy != nullptr && large_copies_.is_past_caches();
    if (batch.zero_copy != nullptr) large_copies_.add(bytes);
    const auto add = [&](std::span<const std::byte> part) {
      crc = past_caches ? crc32_copy_past_caches(crc, to, part) : crc32_copy(crc, to, part);
      to += part.size();
    };
    add(first.subspan(with_header));
    for (const auto& part : packet.payload.subspan(1)) add(part);
    crc = crc32(crc, {to, packet.pad});
  }
  wire::store_icrc(out + covered, crc);
  used_ += bytes;
  ++packets_;
}

void UdpSender::push_run(const wire::TxRun& run) {
  const wire::TxPacket& first = run.first;
  const size_t covered = size_t{first.header_bytes} + first.payload_bytes;
  const size_t bytes = covered + wire::kIcrcBytes;
  if (bytes > kSmallPacket) return PacketSink::push_run(run);
  for (uint32_t i = 0; i < run.count; ++i) {
    UdpPath* const path = path_of(first, bytes);
    if (path == nullptr) continue;
    const GsoBatch& batch = batch_for(*path, first, bytes);
    std::byte* const out = batch.end - bytes;
    std::memcpy(out, first.header.data(), first.header_bytes);
    run.store_header_of(i, out);
    std::memcpy(out + first.header_bytes, run.payload_of(i).data(), first.payload_bytes);
    wire::store_icrc(out + covered,
                     wire::icrc_over_bth(icrc_prefix_of(batch, bytes), {out, covered}));
    used_ += bytes;
    ++packets_;
  }
}

}  // namespace verbena::datapath
