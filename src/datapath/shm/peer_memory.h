// The memory of a peer's process, as far as it permits: copies to and from it that do not need its
// help. The kernel has two ways: the file /proc/PID/mem is quicker for what is short, and is that
// process's memory or nobody's; process_vm_writev is quicker for the rest, and takes a number. The
// number stays when a process becomes another program, whose memory is none of ours: so it is used
// only while the socket to the process stands, which ends with the program.
#pragma once

#include <sys/types.h>

#include "datapath/shm/exposure.h"

namespace verbena::datapath {

class PeerMemory {
 public:
  PeerMemory() = default;
  // `process` 0: its number is not ours to know (another PID namespace). `socket`: to it, and
  // somebody else's to close; -1: it is ourselves.
  PeerMemory(pid_t process, PeerExposure exposure, int socket = -1);

  bool reachable() const { return process_ > 0 && exposure_.mapped(); }
  // False, and nothing that matters has changed: it is not permitted, or not there.
  bool copy(const wire::OneSided& request, const wire::Gid& source, const wire::Gid& destination);
  // The kernel does not let us. True once.
  bool take_denied() { return std::exchange(denied_, false); }

 private:
  long copy_short(bool write, const std::span<const std::byte>& here, uint64_t there) const;

  bool gone() const;

  pid_t process_ = 0;
  int socket_ = -1;
  UniqueFd file_;  // its memory, where we may open it
  PeerExposure exposure_;
  bool denied_ = false;
};

// Lets peers of the same user do this to us where the kernel restricts it to debuggers (Yama).
void permit_peers();

}  // namespace verbena::datapath
