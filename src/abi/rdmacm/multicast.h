// Multicast groups of an identifier.
#pragma once

#include "abi/rdmacm/id.h"

namespace verbena::rdmacm {

// Attaches the queue pair when the program takes the event of a join.
void finish_joining(Event& event);

}  // namespace verbena::rdmacm
