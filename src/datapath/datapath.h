// The Datapath interface: moves RoCE packets between an engine's owner and a medium. One thread at
// a time, under its owner's lock. Decorators (pcap, faults) are datapaths around a datapath. They
// understand packets alone (packets_only.h), so a medium inside one must carry nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "wire/packet_io.h"

namespace verbena::datapath {

// One named number, for people.
struct Counter {
  const char* name;
  uint64_t value;
};

class Datapath {
 public:
  virtual ~Datapath() = default;

  // Makes the way to a peer usable: opens what `route.source` needs on first use. The error says in
  // words what is in the way (the port is taken by another user or by rdma_rxe, no route, ...).
  virtual Result<wire::PathId> open_path(const wire::Route& route) = 0;
  virtual void close_path(wire::PathId path) = 0;

  // From now on traffic class and hop limit of what arrives are told (RxMeta): datagrams show them
  // to the application. Until then nobody pays for it.
  virtual void report_ip_headers() {}

  // Packets that have arrived, checked, at most one batch; empty when there are none. They stay
  // valid until the next receive().
  virtual std::span<const wire::RxPacket> receive() = 0;

  // The same after receive() found nothing, for one who has nothing else to do at the moment: it
  // waits a little, if anything may come soon.
  virtual std::span<const wire::RxPacket> busy_poll() { return {}; }

  // What receive() gave is done with, and not looked at again.
  virtual void release() {}

  // True: call receive() again before waiting; something is held that wait_fd() does not show.
  virtual bool pending() const { return false; }

  // Where to put packets; flush() sends them. What cannot be sent is dropped and counted.
  virtual wire::PacketSink& sink() = 0;
  virtual void flush() = 0;

  // Readable (poll, epoll) while receive() would return something. Owned by the datapath.
  virtual int wait_fd() const = 0;

  // How much payload a packet may carry on the path where that is more than any path MTU; else 0.
  virtual uint32_t packet_bytes(wire::PathId path) {
    (void)path;
    return 0;
  }

  virtual void append_counters(std::vector<Counter>& to) const = 0;
};

}  // namespace verbena::datapath
