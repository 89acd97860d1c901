// What the rest of the ABI needs of the table of devices.
#pragma once

#include "abi/verbs/objects.h"

namespace verbena::abi {

// What discovery last said about it.
runtime::DeviceInfo current_info(Device* device);

// Held across fork(), so that the child finds it free.
void lock_device_table();
void unlock_device_table();

}  // namespace verbena::abi
