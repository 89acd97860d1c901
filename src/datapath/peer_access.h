// PeerAccess: the peers' one-sided access to the memory of this process, and its revocation. A
// local medium offers it if its peers can reach this memory.
#pragma once

#include "datapath/shm/exposure.h"
#include "datapath/shm/revoked_copies.h"
#include "wire/identifiers.h"

namespace verbena::datapath {

class PeerAccess {
 public:
  // The table in which an engine exposes its regions and queue pairs.
  virtual wire::Exposure& exposure() = 0;
  // Whether the queue pair was withdrawn, or changed, since the last call.
  virtual bool take_withdrawn(wire::Qpn qpn) = 0;
  // Call after withdrawing an entry: revokes the current direct copies of all peers, or of the
  // process with that slot. Adds to the list those that the kernel may be executing now.
  virtual void revoke_copies(const MemoryRange& withdrawn, RevokedCopies& to) = 0;
  virtual void revoke_copies_of(uint8_t slot, RevokedCopies& to) = 0;
  // The copy has ended, or its process has.
  virtual bool is_over(const RevokedCopy& copy) = 0;
  // The copy is known to have ended. Later revocations do not wait for it.
  virtual void note_ended(const RevokedCopy& copy) = 0;
  // The copy does not end, so this ends the link to its process. Packets then go over UDP.
  virtual void end_link_of(const RevokedCopy& copy) = 0;
  // Withdraws all entries, permanently.
  virtual void withdraw_all() = 0;

 protected:
  ~PeerAccess() = default;
};

}  // namespace verbena::datapath
