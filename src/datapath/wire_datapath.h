// WireDatapath: the interface of a datapath that reaches other hosts. All processes of a host share
// the host's addresses and the RoCE port, so besides packets it has services for that: it opens an
// address before the first packet is sent, joins multicast groups, and forwards packets that
// reached the wrong process. registry.h lists the wires.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/time.h"
#include "datapath/datapath.h"
#include "host/slot_directory.h"

namespace verbena::datapath {

// The start of a packet that did not reach its host, and the reason: ECONNREFUSED (no process has
// the RoCE port there) or EHOSTUNREACH (the host does not exist).
struct UnreachableHost {
  wire::Gid host;
  int error = 0;
  size_t bytes = 0;
  std::array<std::byte, 64> packet{};
};

class WireDatapath : public Datapath {
 public:
  // --- addresses --------------------------------------------------------------------------------
  // Opens a local address without a path, so that it receives packets before it sends any. Has no
  // effect if it is open.
  virtual Status listen(const wire::Gid& source) = 0;
  // Every packet for this process reaches it directly, as far as is known. Until then other
  // processes forward some, and later packets may overtake those.
  virtual bool is_ready() const = 0;
  // Joins a multicast group on the device's interface.
  virtual Status join(const wire::Gid& group) = 0;
  virtual void leave(const wire::Gid& group) = 0;

  // --- other processes of this host -------------------------------------------------------------
  // Called when the directory's services have changed. Reports them to the other processes.
  virtual void update_services() = 0;
  // Forwards a packet, without its ICRC, to another process of this host: to the one with that
  // slot, to all known ones, or to the first of these services that a process listens to.
  // Forwarding to all never waits and is rate-limited, because any host on the network can cause
  // it.
  virtual host::Forwarded forward(uint8_t slot, std::span<const std::byte> packet,
                                  const wire::RxMeta& meta) = 0;
  virtual void forward_to_everyone(std::span<const std::byte> packet, const wire::RxMeta& meta) = 0;
  virtual host::Forwarded forward(std::span<const host::ServiceName> services,
                                  std::span<const std::byte> packet, const wire::RxMeta& meta) = 0;
  // Reads the slot directory now instead of in a later receive(). Call it after wait_fd() became
  // readable. The next receive() returns the packets.
  virtual void poll_directory() = 0;
  // When poll_directory() has work to do although nothing was received.
  virtual Instant deadline() const = 0;

  // --- for the owner ----------------------------------------------------------------------------
  // The owner does not call receive() again until wait_fd() is readable.
  virtual void prepare_to_sleep() = 0;
  // While on, take_unreachable_host() returns hosts that packets do not reach.
  virtual void report_unreachable_hosts(bool on) = 0;
  virtual std::optional<UnreachableHost> take_unreachable_host() = 0;
  // At most one sentence per second for the owner's log, for example that packets exceed the path's
  // MTU.
  virtual std::optional<std::string> take_warning() = 0;
};

}  // namespace verbena::datapath
