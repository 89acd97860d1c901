// What makes no sense without Ethernet hardware. Each call fails with EOPNOTSUPP and says so in the
// log.
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

using namespace verbena;
using namespace verbena::abi;

namespace {

constexpr Error kNoEthernet{EOPNOTSUPP, "Ethernet addresses are the kernel's business"};

}  // namespace

extern "C" {

// What leaves here are IP packets.
VERBENA_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) {
  return -refuse("ibv_resolve_eth_l2_from_gid", kNoEthernet);
}

}  // extern "C"
