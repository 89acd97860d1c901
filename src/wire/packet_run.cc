// The comparison of the BTHs of a run.
#include "wire/packet_run.h"

#include <cstring>

namespace verbena::wire {
namespace {

// The bytes in front of that word, as a number to compare.
uint64_t load_fixed_part(const std::byte* bth) {
  uint64_t part;
  std::memcpy(&part, bth, sizeof part);
  return part;
}

// The A bit, which may differ, is set.
uint32_t load_flags_and_psn(const std::byte* bth) {
  return load_be32(bth + kBthFlagsOffset) | kBthAckRequestBit;
}

uint32_t next_psn(uint32_t flags_and_psn) {
  return (flags_and_psn & ~kBthPsnBits) | ((flags_and_psn + 1) & kBthPsnBits);
}

// The packets of one GRO batch share it.
bool has_same_meta(const RxPacket& a, const RxPacket& b) {
  return a.meta == b.meta || *a.meta == *b.meta;
}

}  // namespace

size_t PacketRun::count_equal(std::span<const RxPacket> packets) {
  const RxPacket& first = packets[0];
  const uint64_t fixed_part = load_fixed_part(first.bytes.data());
  uint32_t expected = load_flags_and_psn(first.bytes.data());
  size_t count = 1;
  for (; count < packets.size(); ++count) {
    const RxPacket& packet = packets[count];
    if (packet.bytes.size() != first.bytes.size() || !has_same_meta(packet, first) ||
        packet.packet_payload_bytes != first.packet_payload_bytes ||
        !packet.separate_payload.empty()) {
      break;
    }
    expected = next_psn(expected);
    if (load_fixed_part(packet.bytes.data()) != fixed_part ||
        load_flags_and_psn(packet.bytes.data()) != expected) {
      break;
    }
  }
  return count;
}

}  // namespace verbena::wire
