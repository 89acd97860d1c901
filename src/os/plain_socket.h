// A kernel socket for the library's own use. It bypasses socket(): a preloaded library that turns a
// program's sockets into rsockets must not intercept the sockets that rsockets are built on,
// whichever thread opens them.
#pragma once

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/unique_fd.h"

namespace verbena::os {

inline UniqueFd plain_socket(int family, int type) {
  return UniqueFd(static_cast<int>(::syscall(SYS_socket, family, type, 0)));
}

}  // namespace verbena::os
