// The common part of ibv_post_send and ibv_wr_*.
#pragma once

#include <infiniband/verbs.h>

#include "abi/verbs/errors.h"
#include "core/types.h"

namespace verbena::abi {

inline Result<core::WindowBinding> binding_of(const ibv_mw* mw, const ibv_mw_bind_info& info,
                                              uint32_t new_rkey) {
  if (mw == nullptr) return Error{EINVAL, "a bind needs a memory window"};
  if (mw->type == IBV_MW_TYPE_1 && (info.mw_access_flags & IBV_ACCESS_ZERO_BASED) != 0) {
    return Error{EINVAL, "a type 1 memory window cannot be zero-based"};
  }
  return core::WindowBinding{.region_lkey = info.mr != nullptr ? info.mr->lkey : 0,
                             .address = info.addr,
                             .length = info.length,
                             .access = info.mw_access_flags,
                             .new_rkey = new_rkey};
}

// A full queue is normal flow control, so it is not logged.
inline int post_failed(const char* call, const Error& error) {
  return error.code == ENOMEM ? ENOMEM : refuse(call, error);
}

}  // namespace verbena::abi
