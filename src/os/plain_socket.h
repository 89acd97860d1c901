// A socket of the kernel's, for the library's own use. Not through socket(): a library that is
// preloaded to make rsockets of a program's sockets must not get hold of those that rsockets are
// made of, whichever thread opens them.
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
