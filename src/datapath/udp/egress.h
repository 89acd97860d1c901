// How a network interface segments GSO batches.
#pragma once

#include <cstdint>

namespace verbena::datapath {

// True if a NIC may segment batches itself. The kernel numbers the IP IDs of segments upwards from
// the batch's ID. A NIC may number them differently, and the ICRC covers the ID.
bool segments_in_hardware(uint32_t interface_index);

}  // namespace verbena::datapath
