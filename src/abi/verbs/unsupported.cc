// Functions that need Ethernet hardware. Each call fails with EOPNOTSUPP and one log line.
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

using namespace verbena;
using namespace verbena::abi;

namespace {

constexpr Error kNoEthernet{EOPNOTSUPP, "the kernel resolves Ethernet addresses"};

}  // namespace

extern "C" {

// This library sends IP packets, so it knows no Ethernet addresses.
VERBENA_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) {
  return -refuse("ibv_resolve_eth_l2_from_gid", kNoEthernet);
}

}  // extern "C"
