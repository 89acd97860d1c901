// The objects behind the pointers that librdmacm hands out, and what a process has once.
//
// Locks, in the order in which they may be taken: Library's wildcards_mutex, then opening_; a
// device's Nic (libibverbs); Device::mutex, Id::mutex, a channel's. No verbs call and no
// ConnectionManager call is made under those behind the Nic's.
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

inline constexpr uint8_t kPort = 1;  // of a device: it has no other
inline constexpr uint16_t kDefaultPkey = 0xFFFF;

// An open device. The library shares it until its interface is gone, the ids that are on it for as
// long as they live: it closes with the last of them, never under one of the locks above.
struct Device final : runtime::ConnectionManager::Sink, std::enable_shared_from_this<Device> {
  Device(Library& in, ibv_device* of, ibv_context* opened, runtime::ConnectionManager& cm,
         const ibv_device_attr& attributes);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  Library* const library;
  ibv_device* device = nullptr;  // a new one when the interface is renamed
  ibv_context* verbs = nullptr;
  runtime::ConnectionManager* manager = nullptr;
  const uint32_t interface_index;
  uint8_t max_initiator_depth = 0;
  uint8_t max_responder_resources = 0;
  std::atomic<bool> removed{false};  // the interface is gone, for good; set under `mutex`

  // Where the agent's events go. Leaf: taken with the Nic's lock held.
  std::mutex mutex;
  std::unordered_map<uint32_t, Id*> exchanges;
  std::unordered_map<uint32_t, Id*> listeners;
  std::unordered_set<Id*> bound;  // to be told when it is gone
  // About something that a call is just making: told before the call returned its id.
  std::vector<cm::Event> early;

  // The default protection domain and the XRC domain, while identifiers are on the device.
  std::mutex users_mutex;
  int users = 0;
  ibv_pd* pd = nullptr;
  ibv_xrcd* xrcd = nullptr;
  std::vector<ibv_gid_entry> gids;  // as last seen; under users_mutex

  bool on_event(const cm::Event& event) noexcept override;
  void on_removed() override;
  // ENODEV: it is gone.
  Status add_bound(Id& id);
  void forget_bound(Id& id);
  // From now on, and those that came early, its events go to `id`.
  void route_exchange(uint32_t exchange, Id& id);
  void route_listener(uint32_t listener, Id& id);
  uint32_t exchange_of(const Id& id);
  void forget_exchange(uint32_t exchange, const Id& id);
  void forget_listener(uint32_t listener, const Id& id);
  // An index in the GID table, or none.
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
  uint32_t events_acked = 0;  // under the id's
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
  bool synchronous = false;  // the channel is its own

  // What it is about at the agent: a communication or SIDR request id. 0: nothing, any more.
  std::atomic<uint32_t> exchange{0};
  std::atomic<bool> exchanged{false};  // it had one once
  // A request that the program has not taken: which of the agent's listeners it is for.
  std::atomic<uint32_t> asked_listener{0};
  struct Listening {
    std::shared_ptr<Device> device;
    uint32_t listener;
  };
  std::vector<Listening> listening;  // of one that listens everywhere: under wildcards_mutex
  cm::ListenParameters listens_for{};

  IpAddress source;
  IpAddress destination;
  PortBinding port;
  uint8_t gid_index = 0;
  uint32_t psn;  // where the peer begins to send

  std::optional<uint8_t> tos;
  std::optional<uint8_t> ack_timeout;
  std::optional<bool> only_family;  // RDMA_OPTION_ID_AFONLY
  bool reuse_address = false;
  uint32_t qkey = 0;  // 0: not settled yet

  uint8_t initiator_depth = 0;
  uint8_t responder_resources = 0;
  ibv_ece local_ece{};
  ibv_ece remote_ece{};
  bool connect_failed = false;  // CONNECT_ERROR was told; what follows from it is not

  // Guards the channel's pointer, `held` and the acknowledgements.
  std::mutex mutex;
  EventList held;  // of a request that the program has not taken: it has no channel yet
  std::condition_variable acknowledged;
  std::atomic<uint32_t> events_taken{0};
  uint32_t events_acked = 0;
  std::vector<std::unique_ptr<Multicast>> groups;

  std::unique_ptr<ibv_qp_init_attr> endpoint_qp;  // rdma_create_ep: for those who connect
  std::vector<std::byte> connect_data;            // rdma_addrinfo's, before the program's own
  bool resolving_addrinfo = false;
  rdma_addrinfo* resolved_addrinfo = nullptr;

  cm::PortSpace space() const { return static_cast<cm::PortSpace>(ps); }
  bool is_ud() const { return qp_type == IBV_QPT_UD; }
  bool enter(State from, State to) { return state.compare_exchange_strong(from, to); }
  void post(std::unique_ptr<Event> what);
  void post(unsigned kind, int status = 0) { post(std::make_unique<Event>(*this, kind, status)); }
  // Binds it to the device: verbs, pd, port_num.
  Status attach(const std::shared_ptr<Device>& to);
  void detach();
  void set_source(const IpAddress& address);
  void set_destination(const IpAddress& address);
  Status set_path(const ibv_sa_path_rec& path);
};

inline Id* from(rdma_cm_id* id) { return static_cast<Id*>(id); }
inline Event* from(rdma_cm_event* event) { return static_cast<Event*>(event); }

// What a process has once. The child of a fork gets a new one: what belongs to another is dead.
struct Library {
  Ports ports;

  // ENODEV when the machine has none; ENOSYS when libibverbs is of another build.
  Status check_devices();
  // All that there are. What cannot be opened is said in the log; an error if none can.
  Status open_devices();
  // Those that are open and whose interfaces exist.
  std::vector<std::shared_ptr<Device>> devices();
  // What a program was given by rdma_get_devices stays open whatever happens.
  void lend(const std::vector<std::shared_ptr<Device>>& lent);
  // The device that has this address, and its index there.
  struct Local {
    std::shared_ptr<Device> device;
    uint8_t gid_index;
  };
  // It alone is opened if need be: ENODEV if there is none, EBUSY when all slots are taken.
  Result<Local> find(const wire::Gid& gid, uint32_t scope);

  // Listening on every address: wildcards.cc.
  Status listen_everywhere(Id& id);
  void stop_listening_everywhere(Id& id);
  // Takes up interfaces that came and lets go of those that went: now, or soon, on the thread that
  // does so.
  void follow_interfaces();
  void follow_soon();

  // Around fork().
  void lock_for_fork();
  void unlock_after_fork();
  void abandon();
  bool had_devices() const { return opened_; }

 private:
  std::mutex wildcards_mutex_;
  std::vector<Id*> wildcards_;
  std::unique_ptr<runtime::InterfaceMonitor> monitor_;  // from the first wildcard on
  std::atomic<int> follow_fd_{-1};                      // an eventfd
  void start_following();
  void abandon_follower();

  std::mutex opening_;
  std::mutex devices_mutex_;  // leaf
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<std::shared_ptr<Device>> lent_;
  std::atomic<bool> checked_{false};
  std::atomic<bool> opened_{false};
  std::set<ibv_device*> refused_;  // those that could not be opened: said once
  Status open(ibv_device* device);
  std::shared_ptr<Device> find(const runtime::ConnectionManager& manager);
  Status open_interface(const std::string& name);
  std::optional<Local> find_among_open(const wire::Gid& gid, uint32_t scope);
};
Library& library();
template <typename Object>
bool is_dead(const Object& object) {
  return object.library != &library();
}

// EIO after a fork; ENXIO when the identifier's device is gone.
Status check_alive(const Id& id);

// --- what the calls have in common
// -----------------------------------------------------------------

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
// -1 with errno, as the public ones.
int wait_for_event(Channel& channel, Event** event);
// A synchronous id waits for its operation to end; its event stays in id->event.
int complete(Id& id);
// Starts an operation that ends in an event, and completes it. Once it is started, an asynchronous
// id may be gone: another thread took the event.
template <typename Start>
int start_and_complete(rdma_cm_id* id, Start start) {
  const bool synchronous = from(id)->synchronous;
  const int started = start();
  return started == 0 && synchronous ? complete(*from(id)) : started;
}
// A request that nobody took: refused, and gone.
void discard_request(Id* id);
ibv_gid to_public(const wire::Gid& gid);

}  // namespace verbena::rdmacm
