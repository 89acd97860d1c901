// PeerMemory: one-sided access to the memory of a peer process, as far as the peer permits it. The
// system calls take the peer's PID. An exec keeps the PID, but the new program's memory must not be
// accessed; so the PID is used only while the socket to the peer is connected, which exec closes.
#pragma once

#include <sys/types.h>

#include "datapath/shm/direct_copy.h"
#include "datapath/shm/exposure.h"

namespace verbena::datapath {

class PeerMemory {
 public:
  PeerMemory() = default;
  // `process` 0: another PID namespace. `socket` is connected to the peer and not owned; -1: this
  // process itself.
  PeerMemory(pid_t process, PeerExposure exposure, int socket = -1);

  bool reachable() const { return process_ > 0 && exposure_.mapped(); }
  // Call between copy.begin() and copy.end(). False: the access is not permitted, the memory is not
  // mapped, or the copy was revoked; the request must then be sent as packets.
  bool copy(const wire::OneSided& request, const wire::Gid& source, const wire::Gid& destination,
            DirectCopy& copy);
  // The kernel denies access. Returns true once.
  bool take_denied() { return std::exchange(denied_, false); }

 private:
  bool peer_has_ended() const;

  pid_t process_ = 0;
  int socket_ = -1;
  PeerExposure exposure_;
  bool denied_ = false;
};

// Permits peers of the same user to access this process if the kernel restricts that to debuggers
// (Yama).
void permit_peers();

}  // namespace verbena::datapath
