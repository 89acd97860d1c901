// Enhanced connection establishment: vendors' options that travel with REQ and REP.
#pragma once

#include "abi/rdmacm/id.h"

namespace verbena::rdmacm {

// A queue pair was made: what it offers, or (passive) what it has in common with the peer.
Status agree_on_ece(Id& id, ibv_qp* qp);
// The peer's answer has come.
Status settle_ece(Id& id, const cm::Ece& answer);

}  // namespace verbena::rdmacm
