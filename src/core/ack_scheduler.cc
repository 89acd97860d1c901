// The order in which a batch's ACK and requests are handled.
#include "core/ack_scheduler.h"

#include "wire/opcode.h"

namespace verbena::core {

bool ack_overtakes(std::span<const wire::RxPacket> packets) {
  if (packets.size() < 2 || packets[0].bytes.empty()) return false;
  const std::span<const std::byte> second = packets[1].bytes;
  if (second.size() < wire::kBthBytes + wire::kAethBytes) return false;
  const auto opcode_of = [](const wire::RxPacket& packet) -> const wire::OpcodeInfo& {
    return wire::info_of(std::to_integer<uint8_t>(packet.bytes[0]));
  };
  return opcode_of(packets[1]).verb == wire::Verb::Ack &&
         opcode_of(packets[0]).direction == wire::Direction::Request &&
         wire::Aeth::load(second.data() + wire::kBthBytes).kind == wire::AckKind::Ack;
}

}  // namespace verbena::core
