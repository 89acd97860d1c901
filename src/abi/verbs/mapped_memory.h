// Checks that memory to be registered is mapped.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace verbena::abi {

enum class Presence : uint8_t {
  Populated,  // fault every page in now, as a NIC that pins memory does
  Mapped,     // only check that it is mapped: on-demand registration
};

// EFAULT unless [address, address + length) is mapped and readable (and writable if `write`).
Status check_memory(uintptr_t address, uint64_t length, bool write, Presence presence);

}  // namespace verbena::abi
