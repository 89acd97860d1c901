// A socket of the kernel's. Not through socket(): an interposing library that makes rsockets of all
// sockets must not get hold of those that rsockets are made of.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace verbena::rsocket {

inline int plain_socket(int family, int type) {
  return static_cast<int>(::syscall(SYS_socket, family, type, 0));
}

}  // namespace verbena::rsocket
