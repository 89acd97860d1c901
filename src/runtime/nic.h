// Nic: a device in this process. It owns the control plane (queue pairs and their paths, the port
// and its addresses, listeners for events, the connection manager) and a lane, which moves the
// packets. There is one Nic per device and process: all contexts of that device share it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "core/engine.h"
#include "os/no_cancel.h"
#include "runtime/devices.h"
#include "runtime/event_channel.h"
#include "runtime/lane.h"
#include "runtime/management_host.h"

namespace verbena::runtime {

class ConnectionManager;
class Management;

using SharedAddress = std::shared_ptr<const core::AddressHandle>;

class Nic final : private LaneOwner, private ManagementHost {
 public:
  // The Nic of this device. It is created on first use and destroyed with its last user.
  static Result<std::shared_ptr<Nic>> open(const DeviceInfo& device);
  ~Nic();
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  // Holds the lane's lock. The engine is reachable only through a guard. This one is for calls in
  // which a packet may cost little more than the guard itself (see no_cancel.h).
  class PostingGuard {
   public:
    explicit PostingGuard(Nic& nic) : lane_(nic.lane_) { lane_.lock(); }
    ~PostingGuard() { lane_.unlock(); }
    PostingGuard(const PostingGuard&) = delete;
    PostingGuard& operator=(const PostingGuard&) = delete;
    core::Engine& engine() { return lane_.engine(); }

   private:
    Lane& lane_;
  };
  class Guard : os::NoCancel, public PostingGuard {
   public:
    explicit Guard(Nic& nic) : PostingGuard(nic) {}
  };

  // The interface is gone, permanently: a new one with the same index is another device.
  bool removed() const override { return removed_.load(std::memory_order_relaxed); }
  // After a fork the child's copy has no datapath, and calls that need one fail with EIO. The
  // records (memory keys, attributes, the last port state) remain, as the child's own copy.
  bool is_abandoned() const override { return lane_.is_abandoned(); }

  // --- control (nic_objects.cc) -----------------------------------------------------------------
  Result<core::QueuePair*> create_qp(const core::QpConfig& config, Owner* owner);
  // Adds an owner to an XRC receive queue pair.
  Result<core::QueuePair*> open_qp(wire::Qpn qpn, uint32_t xrc_domain, Owner* owner);
  // The queue pair ends with its last owner. EBUSY while it is attached to a multicast group.
  Status destroy_qp(core::QueuePair* qp, Owner* owner);
  // Opens the path when the address vector is set. Changes nothing if it fails.
  Status modify_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask);
  // Direct copies of peers that were revoked because memory was deregistered or changed, or a queue
  // pair ended. A copy in progress must end before the memory is released.
  using Copies = datapath::RevokedCopies;
  // Under the Guard under which memory was withdrawn.
  void revoke_copies(PostingGuard& guard, Copies& copies);
  // Not under a Guard.
  void await_end_of(Copies& copies);
  // Opens the path to an address for datagrams. The path closes when the last copy of the handle is
  // gone and all requests posted with it have left. Do not drop a copy under a Guard.
  Result<SharedAddress> open_address(uint32_t pd, const core::AddressVector& address);
  // Multicast: joins the group with its first member and leaves it with its last.
  Status attach(core::QueuePair& qp, const wire::Gid& group);
  Status detach(core::QueuePair& qp, const wire::Gid& group);
  core::SharedReceiveQueue* create_srq(const core::SrqConfig& config, Owner* owner);
  Status modify_srq(core::SharedReceiveQueue& srq, std::optional<uint32_t> max_wr,
                    std::optional<uint32_t> limit);
  void destroy_srq(core::SharedReceiveQueue* srq);
  // Drops undelivered events about the queue. Call before destroying the queue.
  void forget_cq(core::CompletionQueue* cq);

  // --- data (lane.h) ----------------------------------------------------------------------------
  // Under a Guard: the time, to a microsecond.
  Instant time() override { return lane_.time(); }
  // The time of the last turn, for uses that need no precision.
  Instant recent_time() const override { return lane_.recent_time(); }
  // Under a Guard, after posting sends to `qp`.
  void after_post(PostingGuard&, core::QueuePair& qp, Instant at) { lane_.after_post(qp, at); }
  // Under a Guard, when a send queue is full. A caller that posts in a loop may starve the other
  // threads of the lock, so it makes progress itself.
  void make_room(PostingGuard&) { lane_.make_progress(); }
  // ibv_poll_cq found nothing: takes one bounded turn unless another thread is in one.
  void turn_for_poller() { lane_.turn_for_poller(); }
  // The caller requests an event for the next completion and is about to sleep.
  void arm(core::CompletionQueue& cq, core::Armed level) {
    const PostingGuard guard(*this);
    lane_.arm(cq, level);
  }
  // The caller is about to sleep on a completion channel.
  void poller_sleeps() { lane_.poller_sleeps(); }

  // --- the port (nic_port.cc) -------------------------------------------------------------------
  const DeviceInfo& device() const override { return device_; }
  PortState port();
  wire::Gid gid(size_t index);
  size_t gid_table_size();

  // Made on first use; null in the child of a fork.
  ConnectionManager* connection_manager();

  // Contexts that receive port events (Event::kind as ibv_event_type, object null).
  void add_listener(EventChannel* channel);
  void remove_listener(EventChannel* channel);

  // Counters, one per line: "name value".
  std::string counters_text();

  // The process ends: sends all pending packets.
  void transmit_at_exit();

  // Fork support: called by the process-wide handlers.
  void lock_for_fork() { lane_.mutex().lock(); }
  void unlock_after_fork() { lane_.mutex().unlock(); }
  void abandon_in_child();

 private:
  explicit Nic(const DeviceInfo& device);
  Status start();
  void stop();
  Management& management();

  // LaneOwner
  void on_management(Instant at) override;
  void deliver_events() override;
  BackgroundThread::ExtraFds control_fds() const override;
  void on_wakeup(const BackgroundThread::Wakeup& wakeup) override;

  // ManagementHost (nic_management.cc)
  void lock_management() override { lane_.lock(); }
  void unlock_management() override;
  void await_steering() override;
  void set_management_deadline(Instant deadline) override { lane_.set_owner_deadline(deadline); }
  const GidTable& gids() const override { return gids_; }
  Status listen(const wire::Gid& address) override;
  Status listen_everywhere() override;
  void on_exhaustion() override { lane_.on_exhaustion(); }
  core::ManagementPort& management_port() override { return lane_.engine().management(); }
  Result<wire::PathId> open_management_path(const wire::Route& route) override;
  void release_management_path(wire::PathId path) override;
  void transmit(Instant at) override { lane_.transmit(at); }
  void report_unreachable_hosts(bool on) override;
  std::optional<datapath::UnreachableHost> take_unreachable_host() override;
  host::Forwarded forward(uint8_t slot, const core::ManagementDatagram& datagram) override;
  host::Forwarded forward(std::span<const host::ServiceName> services,
                          const core::ManagementDatagram& datagram) override;
  void forward_to_everyone(const core::ManagementDatagram& datagram) override;
  Status claim_service(const host::ServiceName& name) override;
  void release_service(const host::ServiceName& name) override;
  bool is_claimed(const host::ServiceName& name) const override;
  void update_services() override;

  // The port
  void refresh_port();
  void end_if_removed();

  // Objects
  Result<wire::Gid> source_for(const core::AddressVector& address) const;
  Result<wire::PathId> open_path(const core::AddressVector& address, const wire::Gid& source,
                                 wire::Qpn peer);
  Result<wire::PathId> reference(wire::PathId path);
  Status fill_address(core::AddressHandle& handle);
  void close_address(const core::AddressHandle& handle);
  Status end_qp(core::QueuePair* qp, Owner* owner, Copies& copies);
  Status change_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask, Copies& copies);
  Status set_path(const core::QueuePair& qp, core::QpAttributes& attr, uint32_t mask);
  Status receive_datagrams();
  void revoke_copies_through(wire::Qpn qpn, wire::Qpn peer, Copies& copies);
  void remove_ended_copies(Copies& copies, bool observe_threads);
  void share_memory_with_peer(const core::QueuePair& qp, const core::QpAttributes& attr,
                              uint32_t mask);
  bool shares_memory(const core::QueuePair& qp);
  datapath::PeerAccess* peer_access();  // null: none

  const DeviceInfo device_;
  Lane lane_{device_, *this};
  // The rest is guarded by the lane's lock.
  std::unique_ptr<Management> management_;  // null: not needed yet
  PortState port_;
  GidTable gids_;
  InterfaceMonitor monitor_;
  bool port_changed_ = false;         // and not read since, for lack of memory
  std::atomic<bool> removed_{false};  // written under the lock
  std::vector<EventChannel*> listeners_;
  bool takes_datagrams_ = false;  // a UD queue pair was created: the Nic listens on all addresses
};

}  // namespace verbena::runtime
