// The Datapath interface: moves RoCE packets between an engine's owner and a medium. One thread at
// a time uses it, under its owner's lock. Decorators (pcap, faults) are datapaths around a
// datapath. They handle packets only (packets_only.h), so a medium inside one must carry nothing
// else.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "wire/packet_io.h"

namespace verbena::datapath {

// A named number for display. Its meaning is a few words for users.
struct Counter {
  const char* name;
  uint64_t value;
  const char* meaning = "";
};

class Datapath {
 public:
  virtual ~Datapath() = default;

  // Opens a path to a peer, and the sockets of `route.source` on first use. The error describes the
  // obstacle (the port is taken by another user or by rdma_rxe, no route, ...).
  virtual Result<wire::PathId> open_path(const wire::Route& route) = 0;
  virtual void close_path(wire::PathId path) = 0;

  // From now on RxMeta contains the traffic class and hop limit of received packets. UD queue pairs
  // need them; collecting them costs time.
  virtual void report_ip_headers() {}

  // Returns received and checked packets, at most one batch. They stay valid until the next
  // receive().
  virtual std::span<const wire::RxPacket> receive() = 0;

  // Called after an empty receive() by an owner without other work: polls for a short time if a
  // packet may arrive soon.
  virtual std::span<const wire::RxPacket> busy_poll() { return {}; }

  // The owner no longer uses the packets of the last receive().
  virtual void release() {}

  // True: the datapath has packets that wait_fd() does not report. Call receive() before waiting.
  virtual bool pending() const { return false; }

  // Takes packets; flush() sends them. Packets that cannot be sent are dropped and counted.
  virtual wire::PacketSink& sink() = 0;
  virtual void flush() = 0;

  // Readable (poll, epoll) while receive() would return packets. Owned by the datapath.
  virtual int wait_fd() const = 0;

  // The largest payload of a packet on a large-packet path; 0: the path MTU applies.
  virtual uint32_t packet_bytes(wire::PathId path) {
    (void)path;
    return 0;
  }

  virtual void append_counters(std::vector<Counter>& to) const = 0;
};

}  // namespace verbena::datapath
