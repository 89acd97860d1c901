// The interface of the device table for the rest of the ABI.
#pragma once

#include "abi/verbs/objects.h"

namespace verbena::abi {

// The result of the last discovery.
runtime::DeviceInfo current_info(Device* device);

// Held across fork(), so that the child can take it.
void lock_device_table();
void unlock_device_table();

}  // namespace verbena::abi
