// Which fault a packet gets.
#include "wire/packet_faults.h"

namespace verbena::wire {

PacketFault PacketFaults::draw(Prng& prng) const {
  double left = prng.fraction();
  for (const PacketFaultInfo& f : kPacketFaults) {
    const double probability = this->*f.probability;
    if (left < probability) return f.fault;
    left -= probability;
  }
  return PacketFault::None;
}

}  // namespace verbena::wire
