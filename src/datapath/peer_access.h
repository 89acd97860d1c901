// PeerAccess: what peers may do in the memory of this process by themselves, and how that is
// revoked. A local medium offers it if its peers can reach memory.
#pragma once

#include "datapath/shm/exposure.h"
#include "datapath/shm/revoked_visits.h"
#include "wire/identifiers.h"

namespace verbena::datapath {

class PeerAccess {
 public:
  // Where an engine shows what its peers may do.
  virtual wire::Exposure& exposure() = 0;
  // Memory that was hidden since the last call.
  virtual MemoryRange take_hidden_memory() = 0;
  // Whether the queue pair was hidden, or changed, since the last call.
  virtual bool take_hidden(wire::Qpn qpn) = 0;
  // After something was hidden: revokes what peers are doing in our memory at this moment, all of
  // them or the process of a slot. Adds the visits that the kernel may be copying for.
  virtual void revoke_visits(const MemoryRange& hidden, RevokedVisits& to) = 0;
  virtual void revoke_visits_of(uint8_t slot, RevokedVisits& to) = 0;
  // It is over, or its process gone.
  virtual bool is_over(const RevokedVisit& visit) = 0;
  // It is known that it does not copy any more. Nobody waits for it again.
  virtual void settle(const RevokedVisit& visit) = 0;
  // It does not end. The link to its process does: packets go over UDP.
  virtual void cut(const RevokedVisit& visit) = 0;
  // Permits nothing any more.
  virtual void withdraw() = 0;

 protected:
  ~PeerAccess() = default;
};

}  // namespace verbena::datapath
