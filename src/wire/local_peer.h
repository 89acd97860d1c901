// LocalPeer: functions of shared memory besides moving packets. A sink with paths to processes of
// this host has one, besides room() and push() (packet_io.h). For a path that leaves the host each
// function returns false and has no effect.
#pragma once

#include "wire/packet_io.h"

namespace verbena::wire {

struct OneSided;  // one_sided.h
struct Unread;

class LocalPeer {
 public:
  // The ring of this path is full, whatever the sink's room() returns. The caller retries later.
  virtual bool is_full(PathId path) const = 0;
  // The peer sleeps and reads nothing until it is woken.
  virtual bool is_asleep(PathId path) const = 0;
  // Sends the ACK as a record without headers. False: the caller must send a packet.
  virtual bool send_short_ack(PathId path, const Ack& ack) = 0;
  // Performs a WRITE or READ in the peer's memory. False: the caller must send packets. Part of the
  // data may have been copied already, which does no harm.
  virtual bool access(const OneSided& request) = 0;
  // Removes packets from the ring if the peer has read none of them. False: all of them stay.
  virtual bool retract(const Unread& requests) = 0;

 protected:
  ~LocalPeer() = default;
};

}  // namespace verbena::wire
