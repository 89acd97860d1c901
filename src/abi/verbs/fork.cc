// Fork support. A hardware NIC's library must keep a fork from replacing its pinned pages. Nothing
// is pinned here: the CPU moves the data through the parent's own page tables. The child starts
// without traffic and opens its own devices.
#include "abi/verbs/objects.h"

extern "C" {

VERBENA_EXPORT int ibv_fork_init(void) { return 0; }
VERBENA_EXPORT ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
VERBENA_EXPORT int ibv_dontfork_range(void*, size_t) { return 0; }
VERBENA_EXPORT int ibv_dofork_range(void*, size_t) { return 0; }

}  // extern "C"
