// Runs of packets for sinks that take packets one by one.
#include "wire/packet_io.h"

#include "base/bytes.h"
#include "wire/headers.h"

namespace verbena::wire {

void TxRun::store_header_of(uint32_t i, std::byte* header) const {
  const uint32_t word = load_be32(first.header.data() + kBthFlagsOffset);
  const uint32_t psn = (Psn(word & kBthPsnBits) + i).value();
  const uint32_t ack_request = (ack_requests >> i & 1) != 0 ? kBthAckRequestBit : 0;
  store_be32(header + kBthFlagsOffset,
             (word & ~(kBthPsnBits | kBthAckRequestBit)) | ack_request | psn);
}

void PacketSink::push_run(const TxRun& run) {
  TxPacket packet = run.first;
  for (uint32_t i = 0; i < run.count; ++i) {
    const std::span<const std::byte> payload = run.payload_of(i);
    run.store_header_of(i, packet.header.data());
    packet.payload = {&payload, 1};
    push(packet);
  }
}

}  // namespace verbena::wire
