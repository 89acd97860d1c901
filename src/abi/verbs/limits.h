// What ibv_query_device promises; creating an object beyond it is refused.
#pragma once

#include <cstdint>

#include "core/memory_registry.h"
#include "core/types.h"

namespace verbena::abi {

// A locally administered identifier: no registered vendor has it, and programs that look for the
// quirks of a vendor's cards find none.
inline constexpr uint32_t kVendorId = 0x025642;

inline constexpr uint32_t kMaxQps =
    (1u << 16) - 2;  // 16 bits of a QPN are the process's own; two stay free
inline constexpr uint32_t kMaxQpWr = 32768;
inline constexpr uint32_t kMinSges =
    2;  // given even if less is asked for: UCX insists on more than one
inline constexpr uint32_t kMinInline =
    32;  // likewise, as every driver does: rdma_xclient sends inline without asking
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
