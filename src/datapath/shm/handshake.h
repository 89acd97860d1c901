// The handshake of a link: the socket that a process listens on, and the message that each side
// sends first, together with descriptors of its memory.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "os/unique_fd.h"
#include "os/unix_address.h"

namespace verbena::datapath {

os::UnixAddress shm_address(uint8_t slot);
os::UniqueFd open_shm_socket();

// Whether the peer has closed its end of the socket. Reads nothing.
bool is_hung_up(int fd);

// The PID of the process at the other end; 0 if it is in another PID namespace.
pid_t peer_pid(int fd);

// The descriptors that accompany a handshake message.
struct Descriptors {
  os::UniqueFd exposure;  // the sender's exposure table
  os::UniqueFd segment;   // the memory of the link; sent by the connecting process only
};
// The properties of the process that sends the message.
struct HandshakeInfo {
  uint8_t slot = 0;
  bool wire_packets_only = false;  // see LocalLink
};
// `segment` is -1 in the accepting process. `exposure` is -1 if the process has no exposure table;
// then no descriptor is sent, and the peer rejects a connection without a segment.
bool send_handshake(int fd, const HandshakeInfo& info, int exposure, int segment);
enum class HandshakeRead : uint8_t { Received, NotYet, Unusable };
HandshakeRead receive_handshake(int fd, HandshakeInfo& info, Descriptors& descriptors);

}  // namespace verbena::datapath
