// The limits that ibv_query_device reports. Creating an object beyond them fails.
#pragma once

#include <cstdint>

#include "core/memory_registry.h"
#include "core/types.h"

namespace verbena::abi {

// A locally administered identifier: no registered vendor has it, so programs apply no vendor's
// workarounds.
inline constexpr uint32_t kVendorId = 0x025642;

inline constexpr uint32_t kMaxQps =
    (1u << 16) - 2;  // the process has 16 bits of a QPN; two numbers stay free
inline constexpr uint32_t kMaxQpWr = 32768;
inline constexpr uint32_t kMinSges =
    2;  // granted even if fewer are requested: UCX requires more than one
inline constexpr uint32_t kMinInline =
    32;  // likewise, as in every driver: rdma_xclient sends inline without requesting it
inline constexpr uint32_t kMaxSrqs = 1u << 16;
inline constexpr uint32_t kMaxSrqWr = 32768;
inline constexpr uint32_t kMaxCqs = 1u << 16;
inline constexpr uint32_t kMaxCqe = (1u << 22) - 1;
inline constexpr uint32_t kMaxPds = 1u << 16;
inline constexpr uint32_t kMaxAhs = 1u << 16;
inline constexpr uint32_t kMaxCompletionCounters = 1u << 16;
inline constexpr uint64_t kMaxDeviceMemory = uint64_t{64} << 20;  // per device
inline constexpr uint32_t kMaxRegions = uint32_t{core::MemoryRegistry::kMaxRegions};
inline constexpr uint32_t kMaxWindows = uint32_t{core::MemoryRegistry::kMaxWindows};

}  // namespace verbena::abi
