// Nic: a device in this process. It owns the control plane (queue pairs and their paths, the port
// and its addresses, listeners for events, the connection manager), the memory registry and the
// lanes, which move the packets. There is one Nic per device and process: all contexts of that
// device share it.
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
#include "runtime/lane_set.h"
#include "runtime/management_host.h"

namespace verbena::runtime {

class ConnectionManager;
class Management;

using SharedAddress = std::shared_ptr<const core::AddressHandle>;

class Nic final : private LaneOwner, private ManagementHost, private core::LookupBarrier {
 public:
  // The Nic of this device. It is created on first use and destroyed with its last user.
  static Result<std::shared_ptr<Nic>> open(const DeviceInfo& device);
  ~Nic();
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  // Holds the lock of a lane. The engine is reachable only under that lock. This one is for calls
  // in which a packet may cost little more than the guard itself (see no_cancel.h).
  class PostingGuard {
   public:
    explicit PostingGuard(Lane& lane) : lane_(lane) { lane_.lock(); }
    // The lane that a completion queue belongs to.
    explicit PostingGuard(const CqLanes& lanes) : lane_(lanes.lock_home()) {}
    ~PostingGuard() { lane_.unlock(); }
    PostingGuard(const PostingGuard&) = delete;
    PostingGuard& operator=(const PostingGuard&) = delete;
    core::Engine& engine() { return lane_.engine(); }
    Lane& lane() { return lane_; }

   private:
    Lane& lane_;
  };
  class Guard : os::NoCancel, public PostingGuard {
   public:
    explicit Guard(Lane& lane) : PostingGuard(lane) {}
    explicit Guard(const CqLanes& lanes) : PostingGuard(lanes) {}
    // The control plane, and the first lane.
    explicit Guard(Nic& nic) : PostingGuard(nic.lanes_.first()) {}
  };

  // The interface is gone, permanently: a new one with the same index is another device.
  bool removed() const override { return removed_.load(std::memory_order_relaxed); }
  // After a fork the child's copy has no datapath, and calls that need one fail with EIO. The
  // records (memory keys, attributes, the last port state) remain, as the child's own copy.
  bool is_abandoned() const override { return abandoned_.load(std::memory_order_relaxed); }

  LaneSet& lanes() { return lanes_; }
  Lane& lane_of(const core::QueuePair& qp) { return lanes_.of(qp.qpn()); }

  // --- memory (nic_revocation.cc) ---------------------------------------------------------------
  // For registrations, and whatever withdraws nothing from a peer of this host.
  core::MemoryRegistry& memory() { return memory_; }
  // No access to the region is under way when these return; of change_region(): under the old
  // attributes. See MemoryRegistry. remove_region() returns how many direct copies it waited for.
  Result<size_t> remove_region(uint32_t key);
  Status change_region(uint32_t key, const core::RegionInfo& region);

  // --- control (nic_objects.cc) -----------------------------------------------------------------
  Result<core::QueuePair*> create_qp(const core::QpConfig& config, Owner* owner);
  // Adds an owner to an XRC receive queue pair.
  Result<core::QueuePair*> open_qp(wire::Qpn qpn, uint32_t xrc_domain, Owner* owner);
  // The queue pair ends with its last owner. EBUSY while it is attached to a multicast group.
  Status destroy_qp(core::QueuePair* qp, Owner* owner);
  // Opens the path when the address vector is set. Changes nothing if it fails.
  Status modify_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask);
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

  // --- data (lane.h, lane_set.h) ----------------------------------------------------------------
  // The caller requests an event for the next completion and is about to sleep.
  void arm(const CqLanes& lanes, core::CompletionQueue& cq, core::Armed level);

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

  // The process ends: sends all pending packets, and waits until then at most.
  void transmit_at_exit(Instant until);

  // Fork support: called by the process-wide handlers.
  void lock_for_fork() { lanes_.lock_for_fork(); }
  void unlock_after_fork() { lanes_.unlock_after_fork(); }
  void abandon_in_child();

 private:
  explicit Nic(const DeviceInfo& device);
  Status start();
  void stop();
  Management& management();

  // LaneOwner
  void on_management(Lane& lane, Instant at) override;
  void deliver_events(Lane& lane) override;
  BackgroundThread::ExtraFds control_fds(const Lane& lane) const override;
  void on_wakeup(Lane& lane, const BackgroundThread::Wakeup& wakeup) override;

  // LookupBarrier
  void await_lookups(const core::MemoryView* caller) override;

  // ManagementHost (nic_management.cc). Management lives in the first lane.
  Instant time() override { return lanes_.first().time(); }
  Instant recent_time() const override { return lanes_.first().recent_time(); }
  void lock_management() override { lanes_.first().lock(); }
  void unlock_management() override;
  void await_steering() override { await_steering_of(lanes_.first()); }
  void await_steering_of(Lane& lane);
  void set_management_deadline(Instant deadline) override {
    lanes_.first().set_owner_deadline(deadline);
  }
  const GidTable& gids() const override { return gids_; }
  Status listen(const wire::Gid& address) override;
  Status listen_everywhere() override;
  void on_exhaustion() override { lanes_.first().on_exhaustion(); }
  core::ManagementPort& management_port() override { return lanes_.first().engine().management(); }
  Result<wire::PathId> open_management_path(const wire::Route& route) override;
  void release_management_path(wire::PathId path) override;
  void transmit(Instant at) override { lanes_.first().transmit(at); }
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
  Result<wire::PathId> open_path(Lane& lane, const core::AddressVector& address,
                                 const wire::Gid& source, wire::Qpn peer);
  Result<wire::PathId> reference(wire::PathId path);
  Status fill_address(core::AddressHandle& handle);
  void close_address(const core::AddressHandle& handle);
  // Direct copies of peers that were revoked because memory was deregistered or changed, or a queue
  // pair ended. A copy in progress must end before the memory is released.
  using Copies = datapath::RevokedCopies;
  size_t revoke_copies(const core::RegionInfo& withdrawn);
  // Without a lock.
  void await_end_of(Lane& lane, Copies& copies);
  Status end_qp(Lane& lane, core::QueuePair* qp, Owner* owner, Copies& copies);
  Status change_qp(Lane& lane, core::QueuePair& qp, core::QpAttributes attr, uint32_t mask,
                   Copies& copies);
  Status set_path(Lane& lane, const core::QueuePair& qp, core::QpAttributes& attr, uint32_t mask);
  Status receive_datagrams();
  void remove_ended_copies(Lane& lane, Copies& copies, bool observe_threads);
  void share_memory_with_peer(const core::QueuePair& qp, const core::QpAttributes& attr,
                              uint32_t mask);
  bool shares_memory(const core::QueuePair& qp);

  const DeviceInfo device_;
  std::atomic<bool> abandoned_{false};
  core::MemoryRegistry memory_;
  LaneSet lanes_{device_, *this, memory_};
  SpinLock async_events_lock_;  // of the lanes that raise asynchronous events
  mutable SpinLock gids_lock_;  // of changes of gids_, and of lanes that read it
  // The rest is guarded by the first lane's lock.
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
