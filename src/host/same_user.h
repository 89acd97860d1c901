// The rule that decides whether another process of this host belongs to our user. Shared memory,
// lifelines and the slot directory all use it.
#pragma once

#include <sys/types.h>

namespace verbena::host {

// Whether `uid`, as the kernel reports it to us, is the effective user of this process. The
// overflow uid ("nobody", 65534) stands for every user that our user namespace does not map, so it
// matches only if all users are mapped.
bool is_own_user(uid_t uid);
// Whether the peer of a connected Unix socket belongs to our user.
bool peer_is_own_user(int socket);

}  // namespace verbena::host
