// Enhanced connection establishment: vendors' options that travel with REQ and REP.
#pragma once

#include "abi/rdmacm/id.h"

namespace verbena::rdmacm {

// The peer's answer to a request of an identifier that has a queue pair.
Status settle_ece(Id& id, const cm::Ece& answer);

}  // namespace verbena::rdmacm
