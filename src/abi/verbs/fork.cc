// What the genuine library must do so that a fork does not tear pinned pages from under the NIC.
// Here nothing is pinned: the data is moved by the CPU, through the parent's own page tables, and
// the child starts without traffic: it opens devices of its own for that.
#include "abi/verbs/objects.h"

extern "C" {

VERBENA_EXPORT int ibv_fork_init(void) { return 0; }
VERBENA_EXPORT ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
VERBENA_EXPORT int ibv_dontfork_range(void*, size_t) { return 0; }
VERBENA_EXPORT int ibv_dofork_range(void*, size_t) { return 0; }

}  // extern "C"
