// What a network interface does to a UDP send that asks for segmentation.
#pragma once

#include <cstdint>

namespace verbena::datapath {

// True when a NIC may cut sends itself. The kernel numbers the IP ids of segments from the send's
// own id; a NIC may do otherwise, and the ICRC covers the id.
bool segments_in_hardware(uint32_t interface_index);

}  // namespace verbena::datapath
