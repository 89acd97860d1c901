// Addresses in the tests of detector readout.
#pragma once

#include <cstdint>

namespace verbena::daq {

inline constexpr uint32_t kHostIp = 0x7F000001;
inline constexpr uint32_t kBoardIp = 0x7F000002;

}  // namespace verbena::daq
