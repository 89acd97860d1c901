// How two processes get to share memory: at which socket one is called, who may call, and what is
// said first, with the memory's descriptor beside it.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "os/unique_fd.h"
#include "os/unix_address.h"

namespace verbena::datapath {

os::UnixAddress shm_address(uint8_t slot);
os::UniqueFd open_shm_socket();

// Whether whoever was at the other end has left. Nothing is read.
bool hung_up(int fd);

// The process at the other end; 0: it lives where processes have other numbers.
pid_t peer_process(int fd);

// What comes with a hello.
struct Descriptors {
  os::UniqueFd exposure;  // what the sender permits
  os::UniqueFd segment;   // of a caller: the memory of the link
};
// What a process says of itself.
struct Greeting {
  uint8_t slot = 0;
  bool wire_packets_only = false;  // see Link
};
// `segment`: -1 for one who answers. `exposure`: -1 for one who cannot show
// any; then nothing is sent along, and a call is not accepted.
bool send_hello(int fd, const Greeting& greeting, int exposure, int segment);
enum class HelloRead : uint8_t { Hello, NotYet, Unusable };
HelloRead receive_hello(int fd, Greeting& greeting, Descriptors& descriptors);

}  // namespace verbena::datapath
