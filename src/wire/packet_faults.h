// The faults that a bad network causes to single packets: one list for the datapath that injects
// faults and for the simulator's network. Each of them draws here what happens to a packet and
// carries it out itself, because a fault means something else to a datapath than in virtual time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "base/prng.h"

namespace verbena::wire {

// fault, name (as users write it), counter, meaning of the counter (shown to users)
// A reordered packet is overtaken by later ones. A corrupted packet is dropped, as the ICRC check
// drops it. Only an ECN-capable packet is marked; another one arrives as it is.
#define VERBENA_PACKET_FAULTS(X)                                                                  \
  X(Loss, loss, "fault_packets_lost", "packets lost on purpose (VERBENA_FAULTS)")                 \
  X(Duplicate, duplicate, "fault_packets_duplicated",                                             \
    "packets duplicated on purpose (VERBENA_FAULTS)")                                             \
  X(Reorder, reorder, "fault_packets_reordered", "packets reordered on purpose (VERBENA_FAULTS)") \
  X(Corrupt, corrupt, "fault_packets_corrupted", "packets corrupted on purpose (VERBENA_FAULTS)") \
  X(Delay, delay, "fault_packets_delayed", "packets delayed on purpose (VERBENA_FAULTS)")         \
  X(Mark, mark, "fault_packets_marked", "packets marked (ECN) on purpose (VERBENA_FAULTS)")

enum class PacketFault : uint8_t {
  None,
#define X(fault, name, counter, meaning) fault,
  VERBENA_PACKET_FAULTS(X)
#undef X
};

// The probability of each fault per packet, from 0 to 1.
struct PacketFaults {
#define X(fault, name, counter, meaning) double name = 0;
  VERBENA_PACKET_FAULTS(X)
#undef X

  // The fault of the next packet. A packet has at most one. If the probabilities add up to more
  // than 1, the first ones of the list prevail. Takes exactly one number from the generator, so a
  // fault of probability 0 does not affect which packets the other faults hit.
  PacketFault draw(Prng& prng) const;
};

struct PacketFaultInfo {
  PacketFault fault;
  std::string_view name;
  const char* counter;
  const char* meaning;
  double PacketFaults::*probability;
};

inline constexpr PacketFaultInfo kPacketFaults[] = {
#define X(fault, name, counter, meaning) \
  {PacketFault::fault, #name, counter, meaning, &PacketFaults::name},
    VERBENA_PACKET_FAULTS(X)
#undef X
};

// How often each fault was carried out.
class PacketFaultCounts {
 public:
  void add(PacketFault fault) { ++values_[static_cast<size_t>(fault)]; }
  uint64_t operator[](PacketFault fault) const { return values_[static_cast<size_t>(fault)]; }

 private:
  std::array<uint64_t, 1 + std::size(kPacketFaults)> values_{};
};

}  // namespace verbena::wire
