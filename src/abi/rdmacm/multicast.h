// Multicast groups of an identifier.
#pragma once

#include "abi/rdmacm/id.h"

namespace verbena::rdmacm {

// The program takes the event of a join: its queue pair becomes a member.
void finish_joining(Event& event);

}  // namespace verbena::rdmacm
