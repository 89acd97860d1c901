// Identifiers and channels: creation, migration and destruction.
#include <pthread.h>
#include <sys/random.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/id.h"
#include "abi/verbs/c_enum.h"
#include "base/siphash.h"

namespace verbena::rdmacm {
namespace {

// Never destroyed: threads of the program may use it during exit. Null: not used yet, or not since
// the fork that made this process. It is created under `creating`, which a fork holds.
std::atomic<Library*> current{nullptr};
std::mutex creating;

void before_fork() {
  creating.lock();
  if (Library* const used = current) used->lock_for_fork();
}

void after_fork_in_parent() {
  if (Library* const used = current) used->unlock_after_fork();
  creating.unlock();
}

// Identifiers without a device survive a fork, as in daemon(). Async-signal-safe: another thread of
// the parent may have held the allocator's lock.
void after_fork_in_child() {
  Library* const before = current;
  if (before != nullptr) before->unlock_after_fork();
  if (before != nullptr && before->had_devices()) {
    before->abandon();
    current = nullptr;
  }
  creating.unlock();
}

bool is_port_space(unsigned number) {
  return number == RDMA_PS_TCP || number == RDMA_PS_UDP || number == RDMA_PS_IB ||
         number == RDMA_PS_IPOIB;
}

SipKey random_key() {
  SipKey key{};
  (void)!getrandom(&key, sizeof key, 0);
  return key;
}

// Unpredictable for other hosts.
uint32_t random_psn() {
  static const SipKey key = random_key();
  static std::atomic<uint64_t> counter{0};
  return static_cast<uint32_t>(siphash(key, counter.fetch_add(1))) & 0xFFFFFF;
}

// Afterwards the identifier receives no new events.
void stop_events(Id& id) {
  stop_listening(id);
  if (id.device != nullptr) id.device->forget_bound(id);
  if (!id.exchanged) return;
  if (const uint32_t exchange = id.device->exchange_of(id); exchange != 0) {
    id.device->manager->destroy(exchange);
    id.device->remove_exchange(exchange, id);
  }
}

void drop_undelivered(Id& id) {
  EventList dropped;
  from(id.channel)->remove_if(dropped, [&](const Event& e) { return e.owner == &id; });
  while (!dropped.empty()) {
    const std::unique_ptr<Event> event = dropped.pop();
    if (event->kind() == RDMA_CM_EVENT_CONNECT_REQUEST) discard_request(from(event->id));
  }
}

void wait_for_acknowledgements(Id& id) {
  std::unique_lock lock(id.mutex);
  id.acknowledged.wait(lock, [&] { return id.events_acked >= id.events_taken; });
}

}  // namespace

Library& library() {
  if (Library* const used = current) return *used;
  const std::lock_guard lock(creating);
  if (current == nullptr) current = new Library;
  return *current;
}

bool is_current(const Library* library) { return library == current; }

namespace {

// In the child, libibverbs must release its services before this library releases their ports. Its
// handlers run first, because this library depends on it. The handlers are installed when the
// library is loaded; abi/verbs/context.cc explains why.
[[gnu::constructor]] void install_fork_handlers() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace

Status check_alive(const Id& id) {
  if (belongs_to_parent(id)) return kForked;
  return id.device != nullptr && id.device->removed ? Status(kRemoved) : Status{};
}

Id::Id(Library& in, rdma_event_channel* on, void* user_context, unsigned port_space, unsigned type)
    : rdma_cm_id(), library(&in), psn(random_psn()) {
  channel = on;
  context = user_context;
  std::memcpy(&ps, &port_space, sizeof ps);
  std::memcpy(&qp_type, &type, sizeof qp_type);
}

Id::~Id() {
  library->ports.release(port);
  detach();
  std::free(route.path_rec);
  if (resolved_addrinfo != nullptr) rdma_freeaddrinfo(resolved_addrinfo);
  if (synchronous) Channel::destroy(from(channel));
}

void Id::post(std::unique_ptr<Event> what) {
  const std::lock_guard lock(mutex);
  if (channel == nullptr) {
    held.push(std::move(what));
  } else {
    from(channel)->push(std::move(what));
  }
}

Status Id::attach(const std::shared_ptr<Device>& to) {
  Result<ibv_pd*> domain = to->add_user();
  if (!domain.ok()) return domain.error();
  const Status added = to->add_bound(*this);
  if (!added.ok()) {
    to->drop_user();
    return added;
  }
  device = to;
  pd_user = true;
  verbs = to->verbs;
  pd = domain.value();
  port_num = kPort;
  route.addr.addr.ibaddr.pkey = htons(kDefaultPkey);
  return {};
}

void Id::detach() {
  if (!std::exchange(pd_user, false)) return;
  device->forget_bound(*this);
  device->drop_user();
  device = nullptr;
  verbs = nullptr;
  pd = nullptr;
  port_num = 0;
}

void Id::set_source(const IpAddress& address) {
  source = address;
  write_address(address, route.addr.src_storage);
  route.addr.addr.ibaddr.sgid = to_public(address.is_any() ? wire::Gid{} : address.gid);
}

void Id::set_destination(const IpAddress& address) {
  destination = address;
  write_address(address, route.addr.dst_storage);
  route.addr.addr.ibaddr.dgid = to_public(address.gid);
}

Status Id::set_path(const ibv_sa_path_rec& path) {
  if (route.path_rec == nullptr) {
    route.path_rec = static_cast<ibv_sa_path_rec*>(std::malloc(sizeof path));
    if (route.path_rec == nullptr) return abi::kNoMemory;
  }
  *route.path_rec = path;
  route.num_paths = 1;
  return {};
}

Result<Id*> create_id(Channel* channel, void* context, unsigned port_space, unsigned qp_type) {
  const Status devices = library().check_devices();
  if (!devices.ok()) return devices.error();
  if (!is_port_space(port_space)) return Error{EINVAL, "the port space does not exist"};
  if (channel != nullptr && belongs_to_parent(*channel)) return kForked;
  const bool synchronous = channel == nullptr;
  if (synchronous) {
    Result<Channel*> own = Channel::create(library());
    if (!own.ok()) return own.error();
    channel = own.value();
  }
  Id* id = new Id(library(), channel, context, port_space, qp_type);
  id->synchronous = synchronous;
  return id;
}

void discard_request(Id* id) {
  stop_events(*id);
  delete id;
}

Status destroy_id(Id* id) {
  if (belongs_to_parent(*id)) return kForked;
  stop_events(*id);
  if (id->event != nullptr) rdma_ack_cm_event(std::exchange(id->event, nullptr));
  drop_undelivered(*id);
  wait_for_acknowledgements(*id);
  delete id;
  return {};
}

Status migrate(Id& id, Channel* to) {
  if (belongs_to_parent(id) || (to != nullptr && belongs_to_parent(*to))) return kForked;
  const bool synchronous = to == nullptr;
  if (synchronous && id.synchronous) return Error{EINVAL, "the identifier is synchronous already"};
  if (synchronous) {
    Result<Channel*> own = Channel::create(*id.library);
    if (!own.ok()) return own.error();
    to = own.value();
  }
  Channel* const before = from(id.channel);
  {
    const std::lock_guard lock(id.mutex);
    EventList moved;
    before->remove_if(moved, [&](const Event& e) { return e.owner == &id; });
    to->append(moved);
    id.channel = to;
  }
  if (id.synchronous) {
    if (id.event != nullptr) rdma_ack_cm_event(std::exchange(id.event, nullptr));
    Channel::destroy(before);
  }
  id.synchronous = synchronous;
  wait_for_acknowledgements(id);
  return {};
}

}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT rdma_event_channel* rdma_create_event_channel() {
  return object_of<rdma_event_channel>("rdma_create_event_channel",
                                       []() -> Result<rdma_event_channel*> {
                                         const Status devices = library().check_devices();
                                         if (!devices.ok()) return devices.error();
                                         Result<Channel*> channel = Channel::create(library());
                                         if (!channel.ok()) return channel.error();
                                         return channel.value();
                                       });
}

VERBENA_EXPORT void rdma_destroy_event_channel(rdma_event_channel* channel) {
  Channel::destroy(from(channel));
}

VERBENA_EXPORT int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                                  rdma_port_space ps) {
  return outcome_of("rdma_create_id", [&]() -> Status {
    const unsigned space = verbena::abi::number_of(ps);
    const bool datagrams = space == RDMA_PS_UDP || space == RDMA_PS_IPOIB;
    Result<Id*> made =
        create_id(from(channel), context, space, datagrams ? IBV_QPT_UD : IBV_QPT_RC);
    if (!made.ok()) return made.error();
    *id = made.value();
    return {};
  });
}

VERBENA_EXPORT int rdma_destroy_id(rdma_cm_id* id) {
  return outcome_of("rdma_destroy_id", [&] { return destroy_id(from(id)); });
}

VERBENA_EXPORT int rdma_migrate_id(rdma_cm_id* id, rdma_event_channel* channel) {
  return outcome_of("rdma_migrate_id", [&] { return migrate(*from(id), from(channel)); });
}

VERBENA_EXPORT __be16 rdma_get_src_port(rdma_cm_id* id) {
  return id->route.addr.src_addr.sa_family == AF_INET6 ? id->route.addr.src_sin6.sin6_port
                                                       : id->route.addr.src_sin.sin_port;
}

VERBENA_EXPORT __be16 rdma_get_dst_port(rdma_cm_id* id) {
  return id->route.addr.dst_addr.sa_family == AF_INET6 ? id->route.addr.dst_sin6.sin6_port
                                                       : id->route.addr.dst_sin.sin_port;
}

}  // extern "C"
