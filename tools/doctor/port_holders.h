// The processes that hold UDP port 4791, from /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "wire/identifiers.h"

namespace verbena::tool {

struct PortHolder {
  uid_t uid = 0;
  uint64_t inode = 0;  // 0: a kernel socket
  pid_t pid = 0;       // 0: not visible to this user
};

// Sockets on port 4791 that are bound to this address or to the wildcard address.
std::vector<PortHolder> holders_of(const wire::Gid& address);

// "process 4711 (python3)", "the kernel (rdma_rxe)", "a process of user root".
std::string describe(const PortHolder& holder);

// The program's name, or empty.
std::string name_of_process(pid_t pid);

}  // namespace verbena::tool
