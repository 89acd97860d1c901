// Values of ibv_wc.vendor_err, which refine the completion status.
#pragma once

#include <cstdint>

namespace verbena {

// With IBV_WC_RETRY_EXC_ERR: the peer is a process of this host that has ended or closed its
// device. The request fails at once, without the retries.
inline constexpr uint32_t kVendorPeerEnded = 1;

}  // namespace verbena
