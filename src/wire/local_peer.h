// LocalPeer: what shared memory can do besides carrying packets. A sink offers it beside room() and
// push() (packet_io.h) where some of its paths lead to processes of this host. For a path that
// leaves the host each function returns false, which changes nothing.
#pragma once

#include "wire/packet_io.h"

namespace verbena::wire {

struct OneSided;  // one_sided.h
struct Unread;

class LocalPeer {
 public:
  // The ring of this path has no room, whatever the sink's room() says. Try again a moment later.
  virtual bool is_full(PathId path) const = 0;
  // The peer reads nothing before it is woken.
  virtual bool is_asleep(PathId path) const = 0;
  // Sends the ACK in its short form. False: there is none; send a packet.
  virtual bool send_short_ack(PathId path, const Ack& ack) = 0;
  // Does a WRITE or a READ in the peer's memory, now and without the peer. False: it cannot; then
  // ask the peer by packets. Part of the data may have been copied already, which does no harm.
  virtual bool access(const OneSided& request) = 0;
  // Removes packets from the ring, provided that the peer has read none of them: it never will.
  // False: all of them stay.
  virtual bool retract(const Unread& requests) = 0;

 protected:
  ~LocalPeer() = default;
};

}  // namespace verbena::wire
