// PacketRun: consecutive packets of one message whose BTHs differ only in the PSN, which counts up
// by one, and in the A bit. GRO batches of a long message consist of such runs. The engine handles
// a run by one check of its headers and of its memory. A packet that differs in anything else ends
// the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/packet.h"
#include "wire/packet_io.h"

namespace verbena::wire {

class PacketRun {
 public:
  // The longest run at the front of `packets`, whose first packet is parsed as `first`. Both must
  // outlive the run. Only packets in the middle of a message, without extension headers, form runs;
  // any other is a run of one.
  static PacketRun at_front_of(std::span<const RxPacket> packets, const Packet& first) {
    const bool may_continue = first.op.position == Position::Middle &&
                              first.op.header_bytes == kBthBytes && packets.size() > 1 &&
                              !packets[0].bytes.empty() && packets[0].separate_payload.empty();
    return {packets.first(may_continue ? count_equal(packets) : 1), first};
  }

  const Packet& first() const { return first_; }
  size_t size() const { return packets_.size(); }
  PacketRun first_packets(size_t count) const { return {packets_.first(count), first_}; }
  const RxMeta& meta() const { return *packets_[0].meta; }

  // All payloads have the same size.
  size_t payload_bytes() const { return first_.payload.size(); }
  std::span<const std::byte> payload(size_t i) const {
    return packets_[i].bytes.subspan(kBthBytes, payload_bytes());
  }
  // Whether a packet has the A bit.
  bool asks_for_ack() const {
    uint32_t bits = 0;
    for (const RxPacket& packet : packets_) bits |= load_u8(packet.bytes.data() + kBthFlagsOffset);
    return (bits & 0x80) != 0;
  }

 private:
  PacketRun(std::span<const RxPacket> packets, const Packet& first)
      : packets_(packets), first_(first) {}

  static size_t count_equal(std::span<const RxPacket> packets);

  std::span<const RxPacket> packets_;
  const Packet& first_;
};

}  // namespace verbena::wire
