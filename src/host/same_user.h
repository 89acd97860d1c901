// Who counts as our own user among the processes of this host: the one rule for shared memory,
// lifelines and the directory of slots.
#pragma once

#include <sys/types.h>

namespace verbena::host {

// Whether this user, as the kernel names it to us, is the effective user of this process. The
// overflow uid (nobody, 65534) stands for every user whom our user namespace does not map: it
// matches only where all users are mapped.
bool is_own_user(uid_t uid);
// Whether the other end of a connected Unix socket belongs to our user.
bool peer_is_own_user(int socket);

}  // namespace verbena::host
