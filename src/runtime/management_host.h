// ManagementHost: the interface of the connection manager (management.h) to its Nic. Tests replace
// the Nic.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/time.h"
#include "core/management_port.h"
#include "datapath/udp/udp_socket.h"
#include "host/slot_directory.h"
#include "os/no_cancel.h"
#include "runtime/devices.h"
#include "wire/packet_io.h"

namespace verbena::runtime {

class ManagementHost {
 public:
  // Holds the lock that guards the connection manager and everything below.
  class Guard : os::NoCancel {
   public:
    explicit Guard(ManagementHost& host) : host_(host) { host_.lock_management(); }
    ~Guard() { host_.unlock_management(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    ManagementHost& host_;
  };
  virtual void lock_management() = 0;
  // Delivers the events that the connection manager has by now.
  virtual void unlock_management() = 0;

  // --- without the lock -------------------------------------------------------------------------
  virtual const DeviceInfo& device() const = 0;
  // The child of a fork has no datapath.
  virtual bool is_abandoned() const = 0;
  // Returns when the kernel steers this process's packets to it, or after a timeout.
  virtual void await_steering() = 0;

  // --- time -------------------------------------------------------------------------------------
  virtual Instant time() = 0;
  // The time of the last turn.
  virtual Instant recent_time() const = 0;
  // Management::turn() is called at this time at the latest.
  virtual void set_management_deadline(Instant deadline) = 0;

  // --- the device -------------------------------------------------------------------------------
  virtual bool removed() const = 0;
  virtual const GidTable& gids() const = 0;
  // Receives packets for one address of the device, or for all of them.
  virtual Status listen(const wire::Gid& address) = 0;
  virtual Status listen_everywhere() = 0;
  // Memory ran out, and a MAD was dropped.
  virtual void on_exhaustion() = 0;

  // --- MADs of this process ---------------------------------------------------------------------
  virtual core::ManagementPort& management_port() = 0;
  virtual Result<wire::PathId> open_management_path(const wire::Route& route) = 0;
  // The path is closed when its last MAD was sent.
  virtual void release_management_path(wire::PathId path) = 0;
  virtual void transmit(Instant at) = 0;
  // While on, take_unreachable_host() returns the hosts that cannot be reached.
  virtual void report_unreachable_hosts(bool on) = 0;
  virtual std::optional<datapath::UnreachableHost> take_unreachable_host() = 0;

  // --- other processes of this host -------------------------------------------------------------
  virtual host::Forwarded forward(uint8_t slot, const core::ManagementDatagram& datagram) = 0;
  // To the first of these services that a process has claimed.
  virtual host::Forwarded forward(std::span<const host::ServiceName> services,
                                  const core::ManagementDatagram& datagram) = 0;
  virtual void forward_to_everyone(const core::ManagementDatagram& datagram) = 0;
  virtual Status claim_service(const host::ServiceName& name) = 0;
  virtual void release_service(const host::ServiceName& name) = 0;
  virtual bool is_claimed(const host::ServiceName& name) const = 0;
  // Announces the services that this process has claimed to the kernel and the other processes.
  virtual void update_services() = 0;

 protected:
  ~ManagementHost() = default;
};

}  // namespace verbena::runtime
