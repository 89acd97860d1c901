// The identifier's own queue pair has no ECE options (ibv_query_ece: EOPNOTSUPP), so none are
// offered and none accepted. Programs with their own queue pairs may exchange any options.
#include "abi/rdmacm/ece.h"

#include "abi/rdmacm/errors.h"

namespace verbena::rdmacm {

Status check_ece(Id& id, const cm::Ece& response) {
  id.remote_ece.vendor_id = response.vendor_id;
  id.remote_ece.options = response.options;
  if (response.vendor_id != 0) {
    return Error{EINVAL, "the peer replied with a vendor's options, but none were offered"};
  }
  return {};
}

}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT int rdma_set_local_ece(rdma_cm_id* id, ibv_ece* ece) {
  return outcome_of("rdma_set_local_ece", [&]() -> Status {
    if (id == nullptr || ece == nullptr || ece->vendor_id == 0 || ece->comp_mask != 0) {
      return Error{EINVAL, "an identifier and a vendor's options are needed"};
    }
    if (id->qp != nullptr)
      return Error{EINVAL, "the identifier's own queue pair determines the options"};
    from(id)->local_ece = *ece;
    return {};
  });
}

VERBENA_EXPORT int rdma_get_remote_ece(rdma_cm_id* id, ibv_ece* ece) {
  return outcome_of("rdma_get_remote_ece", [&]() -> Status {
    if (id == nullptr || ece == nullptr) return Error{EINVAL, "identifier or options are missing"};
    if (id->qp != nullptr) return Error{EINVAL, "the identifier's own queue pair has the options"};
    *ece = from(id)->remote_ece;
    return {};
  });
}

}  // extern "C"
