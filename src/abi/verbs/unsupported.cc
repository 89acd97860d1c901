// Objects that this NIC does not have: shared receive queues, address handles, multicast. Each call
// fails with EOPNOTSUPP and says so in the log.
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

using namespace verbena;       // NOLINT(google-build-using-namespace)
using namespace verbena::abi;  // NOLINT(google-build-using-namespace)

namespace {

constexpr Error kNoSrq{EOPNOTSUPP, "shared receive queues are not supported"};
constexpr Error kNoAh{EOPNOTSUPP, "address handles (UD) are not supported"};
constexpr Error kNoMulticast{EOPNOTSUPP, "multicast (UD) is not supported"};

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

VERBENA_EXPORT ibv_ah* ibv_create_ah(ibv_pd*, ibv_ah_attr*) {
  refuse("ibv_create_ah", kNoAh);
  return nullptr;
}
VERBENA_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, uint8_t) {
  refuse("ibv_create_ah_from_wc", kNoAh);
  return nullptr;
}
VERBENA_EXPORT int ibv_init_ah_from_wc(ibv_context*, uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  refuse("ibv_init_ah_from_wc", kNoAh);
  return -1;
}
VERBENA_EXPORT int ibv_destroy_ah(ibv_ah*) { return refuse("ibv_destroy_ah", kNoAh); }

// Ethernet addresses are the kernel's business: what leaves here are IP packets.
VERBENA_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) {
  return -refuse("ibv_resolve_eth_l2_from_gid", kNoAh);
}

VERBENA_EXPORT int ibv_attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) {
  return refuse("ibv_attach_mcast", kNoMulticast);
}
VERBENA_EXPORT int ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) {
  return refuse("ibv_detach_mcast", kNoMulticast);
}

}  // extern "C"
