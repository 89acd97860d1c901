// How two processes get to share memory: at which socket one is called, who may call, and what is
// said first, with the memory's descriptor beside it.
#pragma once

#include <cstdint>

#include "datapath/udp/unique_fd.h"
#include "datapath/unix_address.h"

namespace verbena::datapath {

UnixAddress shm_address(uint8_t slot);
UniqueFd open_shm_socket();

// Whether the other end belongs to our user, as the kernel vouches.
bool same_user(int fd);
// Whether whoever was at the other end has left. Nothing is read.
bool hung_up(int fd);

// `slot`: the sender's. `descriptor`: of the memory, or -1.
bool send_hello(int fd, uint8_t slot, int descriptor);
enum class HelloRead : uint8_t { Hello, NotYet, Unusable };
// `descriptor`: what came with it, if anything.
HelloRead receive_hello(int fd, uint8_t* slot, UniqueFd* descriptor);

}  // namespace verbena::datapath
