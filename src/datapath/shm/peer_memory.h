// The memory of a peer's process, as far as it permits: copies to and from it that do not need its
// help. The kernel takes the process's number. The number stays when a process becomes another
// program (exec), whose memory is none of ours: so it is used only while the socket to the process
// stands, which ends with the program.
#pragma once

#include <sys/types.h>

#include "datapath/shm/direct_copy.h"
#include "datapath/shm/exposure.h"

namespace verbena::datapath {

class PeerMemory {
 public:
  PeerMemory() = default;
  // `process` 0: its number is not ours to know (another PID namespace). `socket`: to it, and
  // somebody else's to close; -1: it is ourselves.
  PeerMemory(pid_t process, PeerExposure exposure, int socket = -1);

  bool reachable() const { return process_ > 0 && exposure_.mapped(); }
  // During a copy. False, and nothing that matters has changed: it is not permitted, not there, or
  // revoked.
  bool copy(const wire::OneSided& request, const wire::Gid& source, const wire::Gid& destination,
            DirectCopy& copy);
  // The kernel does not let us. True once.
  bool take_denied() { return std::exchange(denied_, false); }

 private:
  bool gone() const;

  pid_t process_ = 0;
  int socket_ = -1;
  PeerExposure exposure_;
  bool denied_ = false;
};

// Lets peers of the same user do this to us where the kernel restricts it to debuggers (Yama).
void permit_peers();

}  // namespace verbena::datapath
