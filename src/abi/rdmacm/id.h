// The objects behind the pointers that librdmacm hands out, and what a process has once.
//
// Locks, in the order in which they may be taken: a device's Nic (libibverbs), Device::mutex,
// Id::mutex, a channel's. No verbs call and no ConnectionManager call is made under any of ours.
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
#include <vector>

#include "abi/rdmacm/addresses.h"
#include "abi/rdmacm/event_queue.h"
#include "abi/rdmacm/ports.h"
#include "base/result.h"
#include "cm/events.h"
#include "runtime/connection_manager.h"

namespace verbena::rdmacm {

inline constexpr uint8_t kPort = 1;  // of a device: it has no other
inline constexpr uint16_t kDefaultPkey = 0xFFFF;

// An open device. It stays open: its ids come and go.
struct Device {
  ibv_device* device = nullptr;
  ibv_context* verbs = nullptr;
  runtime::ConnectionManager* manager = nullptr;
  uint32_t interface_index = 0;
  uint8_t max_initiator_depth = 0;
  uint8_t max_responder_resources = 0;
  Device* next = nullptr;

  // Where the agent's events go. Leaf: taken with the Nic's lock held.
  std::mutex mutex;
  std::unordered_map<uint32_t, Id*> exchanges;
  std::unordered_map<uint32_t, Id*> listeners;
  // About something that a call is just making: told before the call returned its id.
  std::vector<cm::Event> early;

  // The default protection domain and the XRC domain, while identifiers are on the device.
  std::mutex users_mutex;
  int users = 0;
  ibv_pd* pd = nullptr;
  ibv_xrcd* xrcd = nullptr;
  std::vector<ibv_gid_entry> gids;  // as last seen; under users_mutex

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
  Device* device = nullptr;
  bool pd_user = false;  // counted in device->users
  std::atomic<State> state{State::Idle};
  bool synchronous = false;  // the channel is its own

  // What it is about at the agent: a communication or SIDR request id. 0: nothing, any more.
  std::atomic<uint32_t> exchange{0};
  std::atomic<bool> exchanged{false};  // it had one once
  // A request that the program has not taken: which of the agent's listeners it is for.
  std::atomic<uint32_t> asked_listener{0};
  struct Listening {
    Device* device;
    uint32_t listener;
  };
  std::vector<Listening> listening;

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
  Status attach(Device& to);
  void detach();
  void set_source(const IpAddress& address);
  void set_destination(const IpAddress& address);
  Status set_path(const ibv_sa_path_rec& path);
};

inline Id* from(rdma_cm_id* id) { return static_cast<Id*>(id); }
inline Event* from(rdma_cm_event* event) { return static_cast<Event*>(event); }

// What a process has once. The child of a fork gets a new one: what belongs to another is dead.
struct Library {
  std::mutex mutex;  // opening devices
  std::atomic<Device*> devices{nullptr};
  Ports ports;

  // ENODEV when the machine has none; ENOSYS when libibverbs is of another build.
  Status check_devices();
  // All that there are. What cannot be opened is said in the log; an error if none can.
  Status open_devices();
  // The device that has this address, and its index there.
  struct Local {
    Device* device;
    uint8_t gid_index;
  };
  // It alone is opened if need be: ENODEV if there is none, EBUSY when all slots are taken.
  Result<Local> find(const wire::Gid& gid, uint32_t scope);
  Device* find(const runtime::ConnectionManager& manager) const;

 private:
  std::atomic<bool> checked_{false};
  std::set<ibv_device*> refused_;  // those that could not be opened: said once
  Status open(ibv_device* device);
  Status open_interface(const std::string& name);
  std::optional<Local> find_among_open(const wire::Gid& gid, uint32_t scope);
};
Library& library();
void install_fork_handlers();  // once a device is open
template <typename Object>
bool is_dead(const Object& object) {
  return object.library != &library();
}

// --- what the calls have in common
// -----------------------------------------------------------------

Result<Id*> create_id(Channel* channel, void* context, unsigned port_space, unsigned qp_type);
Status destroy_id(Id* id);
Status migrate(Id& id, Channel* to);
Status bind_address(Id& id, const IpAddress& address);
Status resolve_address(Id& id, const sockaddr* source, const sockaddr* destination);
Status resolve_route(Id& id);
Status listen(Id& id, int backlog);
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
