// Objects that this NIC does not have: shared receive queues. Each call fails with EOPNOTSUPP and
// says so in the log.
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

using namespace verbena;       // NOLINT(google-build-using-namespace)
using namespace verbena::abi;  // NOLINT(google-build-using-namespace)

namespace {

constexpr Error kNoSrq{EOPNOTSUPP, "shared receive queues are not supported"};
constexpr Error kNoEthernet{EOPNOTSUPP, "Ethernet addresses are the kernel's business"};

}  // namespace

extern "C" {

VERBENA_EXPORT ibv_srq* ibv_create_srq(ibv_pd*, ibv_srq_init_attr*) {
  refuse("ibv_create_srq", kNoSrq);
  return nullptr;
}
VERBENA_EXPORT int ibv_modify_srq(ibv_srq*, ibv_srq_attr*, int) {
  return refuse("ibv_modify_srq", kNoSrq);
}
VERBENA_EXPORT int ibv_query_srq(ibv_srq*, ibv_srq_attr*) {
  return refuse("ibv_query_srq", kNoSrq);
}
VERBENA_EXPORT int ibv_destroy_srq(ibv_srq*) { return refuse("ibv_destroy_srq", kNoSrq); }

// What leaves here are IP packets.
VERBENA_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) {
  return -refuse("ibv_resolve_eth_l2_from_gid", kNoEthernet);
}

}  // extern "C"
