// The objects behind librdmacm's public pointers, and the per-process state.
//
// Lock order: Library's wildcards_mutex, then opening_; a device's Nic (libibverbs); Device::mutex,
// Id::mutex, a channel's. No verbs call and no ConnectionManager call is made under the locks that
// follow the Nic's.
#pragma once

#include <rdma/rdma_cma.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "abi/rdmacm/addresses.h"
#include "abi/rdmacm/event_queue.h"
#include "abi/rdmacm/ports.h"
#include "base/result.h"
#include "cm/events.h"
#include "runtime/connection_manager.h"
#include "runtime/devices.h"

namespace verbena::rdmacm {

inline constexpr uint8_t kPort = 1;  // the only port of a device
inline constexpr uint16_t kDefaultPkey = 0xFFFF;

// An open device. The library references it until its interface is removed, its identifiers as long
// as they exist. The last reference closes it, never under one of the locks above.
struct Device final : runtime::ConnectionManager::Sink, std::enable_shared_from_this<Device> {
  Device(Library& in, ibv_device* of, ibv_context* opened, runtime::ConnectionManager& cm,
         const ibv_device_attr& attributes);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  Library* const library;
  ibv_device* device = nullptr;  // changes when the interface is renamed
  ibv_context* verbs = nullptr;
  runtime::ConnectionManager* manager = nullptr;
  const uint32_t interface_index;
  uint8_t max_initiator_depth = 0;
  uint8_t max_responder_resources = 0;
  std::atomic<bool> removed{false};  // the interface was removed permanently; set under `mutex`

  // Guards the routing of the agent's events. A leaf lock, taken under the first lane's lock.
  std::mutex mutex;
  std::unordered_map<uint32_t, Id*> exchanges;
  std::unordered_map<uint32_t, Id*> listeners;
  std::unordered_set<Id*> bound;  // identifiers to notify of the removal
  // Events of an exchange that a call is just creating: reported before the call returned its ID.
  std::vector<cm::Event> unrouted;

  // The default protection domain and the XRC domain exist while identifiers use the device.
  std::mutex users_mutex;
  int users = 0;
  ibv_pd* pd = nullptr;
  ibv_xrcd* xrcd = nullptr;
  std::vector<ibv_gid_entry> gids;  // at the last lookup; under users_mutex

  bool on_event(const cm::Event& event) noexcept override;
  void on_removed() override;
  // ENODEV: the device was removed.
  Status add_bound(Id& id);
  void forget_bound(Id& id);
  // Routes the events of the exchange, including those received before this call, to `id`.
  void route_exchange(uint32_t exchange, Id& id);
  void route_listener(uint32_t listener, Id& id);
  uint32_t exchange_of(const Id& id);
  void remove_exchange(uint32_t exchange, const Id& id);
  void remove_listener(uint32_t listener, const Id& id);
  // The address's index in the GID table, if it is there.
  std::optional<uint8_t> gid_index(const wire::Gid& gid);
  Result<ibv_pd*> add_user();
  void drop_user();
  Result<ibv_xrcd*> xrc_domain();
};

struct Multicast {
  Id* id = nullptr;
  void* context = nullptr;
  ibv_gid mgid{};
  IpAddress address;
  bool send_only = false;
  bool attached = false;
  uint32_t events_taken = 0;  // under the channel's lock
  uint32_t events_acked = 0;  // under the identifier's lock
};

enum class State : uint8_t {
  Idle,
  AddressBound,
  AddressResolved,
  RouteResolved,
  Connect,
  Disconnect,
  Listen,
};

struct Id : rdma_cm_id {
  Id(Library& in, rdma_event_channel* on, void* user_context, unsigned port_space, unsigned type);
  ~Id();

  Library* library;
  std::shared_ptr<Device> device;
  bool pd_user = false;  // counted in device->users
  std::atomic<State> state{State::Idle};
  bool synchronous = false;  // the identifier owns its channel

  // The agent's communication ID or SIDR request ID. 0: none, or ended.
  std::atomic<uint32_t> exchange{0};
  std::atomic<bool> exchanged{false};  // there was an exchange
  // For a request that the program has not taken: the agent's listener that received it.
  std::atomic<uint32_t> request_listener{0};
  struct Listening {
    std::shared_ptr<Device> device;
    uint32_t listener;
  };
  std::vector<Listening> listening;  // for a wildcard listener under wildcards_mutex
  cm::ListenParameters listens_for{};

  IpAddress source;
  IpAddress destination;
  PortBinding port;
  uint8_t gid_index = 0;
  uint32_t psn;  // the first PSN that the peer sends

  std::optional<uint8_t> tos;
  std::optional<uint8_t> ack_timeout;
  std::optional<bool> only_family;  // RDMA_OPTION_ID_AFONLY
  bool reuse_address = false;
  uint32_t qkey = 0;  // 0: not chosen yet

  uint8_t initiator_depth = 0;
  uint8_t responder_resources = 0;
  ibv_ece local_ece{};
  ibv_ece remote_ece{};
  bool connect_failed = false;  // CONNECT_ERROR was reported; later events are suppressed

  // Guards the channel's pointer, `held` and the acknowledgements.
  std::mutex mutex;
  EventList held;  // events of a request that the program has not taken: it has no channel yet
  std::condition_variable acknowledged;
  std::atomic<uint32_t> events_taken{0};
  uint32_t events_acked = 0;
  std::vector<std::unique_ptr<Multicast>> groups;

  std::unique_ptr<ibv_qp_init_attr> endpoint_qp;  // of rdma_create_ep, for the active side
  std::vector<std::byte> connect_data;            // from rdma_addrinfo; precedes the program's own
  bool resolving_addrinfo = false;
  rdma_addrinfo* resolved_addrinfo = nullptr;

  cm::PortSpace space() const { return static_cast<cm::PortSpace>(ps); }
  bool is_ud() const { return qp_type == IBV_QPT_UD; }
  bool enter(State from, State to) { return state.compare_exchange_strong(from, to); }
  void post(std::unique_ptr<Event> what);
  void post(unsigned kind, int status = 0) { post(std::make_unique<Event>(*this, kind, status)); }
  // Binds the identifier to the device: sets verbs, pd, port_num.
  Status attach(const std::shared_ptr<Device>& to);
  void detach();
  void set_source(const IpAddress& address);
  void set_destination(const IpAddress& address);
  Status set_path(const ibv_sa_path_rec& path);
};

inline Id* from(rdma_cm_id* id) { return static_cast<Id*>(id); }
inline Event* from(rdma_cm_event* event) { return static_cast<Event*>(event); }

// Per-process state. The child of a fork gets a new one; objects of the old one are unusable.
struct Library {
  Ports ports;

  // ENODEV: the machine has no device. ENOSYS: libibverbs is from another build.
  Status check_devices();
  // Opens all devices and logs those that cannot be opened. Returns an error if none can.
  Status open_devices();
  // The open devices whose interfaces exist.
  std::vector<std::shared_ptr<Device>> devices();
  // Keeps devices open that rdma_get_devices returned to the program.
  void keep_open(const std::vector<std::shared_ptr<Device>>& devices);
  // The device with this address, and the address's index there.
  struct Local {
    std::shared_ptr<Device> device;
    uint8_t gid_index;
  };
  // Opens only this device, if necessary. ENODEV: there is none. EBUSY: all slots are taken.
  Result<Local> find(const wire::Gid& gid, uint32_t scope);

  // Wildcard listeners: wildcards.cc.
  Status listen_everywhere(Id& id);
  void stop_listening_everywhere(Id& id);
  // Opens devices of new interfaces and drops those of removed ones: now, or soon on the thread for
  // that.
  void follow_interfaces();
  void follow_soon();

  // Fork handlers.
  void lock_for_fork();
  void unlock_after_fork();
  void abandon();
  bool had_devices() const { return opened_; }

 private:
  std::mutex wildcards_mutex_;
  std::vector<Id*> wildcards_;
  // exists from the first wildcard listener on
  std::unique_ptr<runtime::InterfaceMonitor> monitor_;
  std::atomic<int> follow_fd_{-1};  // an eventfd
  void start_following();

  std::mutex opening_;
  std::mutex devices_mutex_;  // a leaf lock
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<std::shared_ptr<Device>> kept_open_;
  std::atomic<bool> checked_{false};
  std::atomic<bool> opened_{false};
  std::set<ibv_device*> refused_;  // could not be opened; logged once
  Status open(ibv_device* device);
  std::shared_ptr<Device> find(const runtime::ConnectionManager& manager);
  Status open_interface(const std::string& name);
  std::optional<Local> find_among_open(const wire::Gid& gid, uint32_t scope);
};
Library& library();
bool is_current(const Library* library);
template <typename Object>
bool belongs_to_parent(const Object& object) {
  return !is_current(object.library);
}

// EIO: created before a fork. ENXIO: the identifier's device was removed.
Status check_alive(const Id& id);

// --- common parts of the calls -----------------------------------------------------------------

Result<Id*> create_id(Channel* channel, void* context, unsigned port_space, unsigned qp_type);
Status destroy_id(Id* id);
Status migrate(Id& id, Channel* to);
Status bind_address(Id& id, const IpAddress& address);
Status resolve_address(Id& id, const sockaddr* source, const sockaddr* destination);
Status resolve_route(Id& id);
Status listen(Id& id, int backlog);
Status listen_on(Id& id, Device& device);
void stop_listening(Id& id);
Status set_option(Id& id, int level, int name, const void* value, size_t size);
Status create_qp(Id& id, ibv_pd* pd, ibv_qp_init_attr* init);
// Returns -1 with errno, like the public functions.
int wait_for_event(Channel& channel, Event** event);
// A synchronous identifier waits until its operation has ended; the event stays in id->event.
int complete(Id& id);
// Starts an operation that ends in an event, and completes it. After the start, an asynchronous
// identifier may already be destroyed: another thread may have taken the event.
template <typename Start>
int start_and_complete(rdma_cm_id* id, Start start) {
  const bool synchronous = from(id)->synchronous;
  const int started = start();
  return started == 0 && synchronous ? complete(*from(id)) : started;
}
// Rejects and deletes a request that the program did not take.
void discard_request(Id* id);
ibv_gid to_public(const wire::Gid& gid);

}  // namespace verbena::rdmacm
