// PeerAccess: what peers may do in the memory of this process by themselves, and how that is
// revoked. A local medium offers it if its peers can reach memory.
#pragma once

#include "datapath/shm/exposure.h"
#include "datapath/shm/revoked_copies.h"
#include "wire/identifiers.h"

namespace verbena::datapath {

class PeerAccess {
 public:
  // Where an engine shows what its peers may do.
  virtual wire::Exposure& exposure() = 0;
  // Memory that was withdrawn since the last call.
  virtual MemoryRange take_withdrawn_memory() = 0;
  // Whether the queue pair was withdrawn, or changed, since the last call.
  virtual bool take_withdrawn(wire::Qpn qpn) = 0;
  // After something was withdrawn: revokes what peers are doing in our memory at this moment, all
  // of them or the process of a slot. Adds the copies that the kernel may be copying for.
  virtual void revoke_copies(const MemoryRange& withdrawn, RevokedCopies& to) = 0;
  virtual void revoke_copies_of(uint8_t slot, RevokedCopies& to) = 0;
  // It is over, or its process gone.
  virtual bool is_over(const RevokedCopy& copy) = 0;
  // It is known that it does not copy any more. Nobody waits for it again.
  virtual void settle(const RevokedCopy& copy) = 0;
  // It does not end. The link to its process does: packets go over UDP.
  virtual void end_link_of(const RevokedCopy& copy) = 0;
  // Permits nothing any more.
  virtual void withdraw_all() = 0;

 protected:
  ~PeerAccess() = default;
};

}  // namespace verbena::datapath
