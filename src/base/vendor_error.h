// What ibv_wc.vendor_err says beyond the status.
#pragma once

#include <cstdint>

namespace verbena {

// With IBV_WC_RETRY_EXC_ERR: the peer is a process of this host and has ended, or closed its
// device. Nobody waited for it in vain.
inline constexpr uint32_t kVendorPeerEnded = 1;

}  // namespace verbena
