// Enhanced connection establishment (ECE): vendor options in REQ and REP.
#pragma once

#include "abi/rdmacm/id.h"

namespace verbena::rdmacm {

// Checks the options in the peer's response to an identifier that has a queue pair.
Status check_ece(Id& id, const cm::Ece& response);

}  // namespace verbena::rdmacm
