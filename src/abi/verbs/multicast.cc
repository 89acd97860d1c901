// Multicast: a group is an IP group, joined on the device's interface while queue pairs are
// attached.
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

wire::Gid group_of(const ibv_gid& gid) { return wire::Gid::from_ipv6(gid.raw); }

}  // namespace
}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

// The LID has no meaning on Ethernet. As in the kernel's drivers, attaching twice is no error.
VERBENA_EXPORT int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t) {
  return status_of("ibv_attach_mcast", [&]() -> Status {
    Qp* q = from(qp);
    if (q->nic->is_abandoned()) return kDead;
    return q->nic->attach(*q->core, group_of(*gid));
  });
}

VERBENA_EXPORT int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t) {
  return status_of("ibv_detach_mcast", [&]() -> Status {
    Qp* q = from(qp);
    if (q->nic->is_abandoned()) return kDead;
    return q->nic->detach(*q->core, group_of(*gid));
  });
}

}  // extern "C"
