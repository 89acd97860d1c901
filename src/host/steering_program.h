// The classic BPF program by which the kernel selects a socket of a SO_REUSEPORT group.
#pragma once

#include <linux/filter.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace verbena::host {

// A probe packet (see steering.h) begins with this byte and contains an index at this offset.
inline constexpr uint8_t kProbeOpcode = 0xFF;
inline constexpr uint32_t kProbeIndexOffset = 16;

// Offsets in a connection request: the MAD attribute, and the lower half of the service ID. The
// DETH is at 12, the MAD at 20, its body at 44.
inline constexpr uint32_t kAttributeOffset = 36;
inline constexpr uint32_t kServiceLowOffset = 56;
inline constexpr uint16_t kRequestAttribute = 0x10;  // REQ

// The kernel limits programs to 4096 instructions and by net.core.optmem_max.
inline constexpr size_t kMaxSteeredServices = 512;

struct SteeringTable {
  static constexpr int16_t kUnknown = -1;

  SteeringTable() { index_of_slot.fill(kUnknown); }
  std::array<int16_t, 256> index_of_slot;
  // The listener's index for connection requests of a service. The key is the lower half of the
  // service ID (the upper half is zero for every IP port).
  std::vector<std::pair<uint32_t, int16_t>> services;
  // Index of the process that receives and forwards packets without a known owner. Unknown: the
  // kernel chooses.
  int16_t fallback = kUnknown;
};

std::vector<sock_filter> steering_program(const SteeringTable& table);

}  // namespace verbena::host
