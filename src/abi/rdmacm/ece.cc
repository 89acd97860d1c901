// This vendor has no options: what two sides have in common is none. Programs with queue pairs of
// their own exchange what they like.
#include "abi/rdmacm/ece.h"

#include "abi/rdmacm/errors.h"

namespace verbena::rdmacm {

Status agree_on_ece(Id& id, ibv_qp* qp) {
  ibv_ece offered{};
  const int code = ibv_query_ece(qp, &offered);
  if (code == EOPNOTSUPP) return {};
  if (code != 0) return Error{code, "the queue pair does not say what it offers"};
  id.local_ece = offered;
  return {};
}

Status settle_ece(Id& id, const cm::Ece& answer) {
  id.remote_ece.vendor_id = answer.vendor_id;
  id.remote_ece.options = answer.options;
  if (answer.vendor_id != 0 && answer.vendor_id != id.local_ece.vendor_id) {
    return Error{EINVAL, "the peer answered with another vendor's options"};
  }
  id.local_ece.options = 0;
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
    if (id->qp != nullptr) return Error{EINVAL, "the identifier's own queue pair says this"};
    from(id)->local_ece = *ece;
    return {};
  });
}

VERBENA_EXPORT int rdma_get_remote_ece(rdma_cm_id* id, ibv_ece* ece) {
  return outcome_of("rdma_get_remote_ece", [&]() -> Status {
    if (id == nullptr || ece == nullptr) return Error{EINVAL, "identifier or options are missing"};
    if (id->qp != nullptr) return Error{EINVAL, "the identifier's own queue pair knows this"};
    *ece = from(id)->remote_ece;
    return {};
  });
}

}  // extern "C"
