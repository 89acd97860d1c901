// The classic BPF program with which the kernel picks a socket of a SO_REUSEPORT group.
#pragma once

#include <linux/filter.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace verbena::host {

// A probe packet (see steering.h) begins with this byte and names an index there.
inline constexpr uint8_t kProbeOpcode = 0xFF;
inline constexpr uint32_t kProbeIndexOffset = 16;

// Where a connection request has its MAD attribute, and the lower half of its service id: BTH, DETH
// at 12, MAD at 20, its body at 44.
inline constexpr uint32_t kAttributeOffset = 36;
inline constexpr uint32_t kServiceLowOffset = 56;
inline constexpr uint16_t kRequestAttribute = 0x10;  // REQ

// Programs are limited to 4096 instructions, and by net.core.optmem_max.
inline constexpr size_t kMostSteeredServices = 512;

struct SteeringTable {
  static constexpr int16_t kUnknown = -1;

  SteeringTable() { index_of_slot.fill(kUnknown); }
  std::array<int16_t, 256> index_of_slot;
  // Connection requests for a service: the lower half of its id (the upper one is zero for every IP
  // port), and the listener's index.
  std::vector<std::pair<uint32_t, int16_t>> services;
  // Who gets what is for nobody in particular, and passes it on. Unknown: the kernel chooses.
  int16_t fallback = kUnknown;
};

std::vector<sock_filter> steering_program(const SteeringTable& table);

}  // namespace verbena::host
