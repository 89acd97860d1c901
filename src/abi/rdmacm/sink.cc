// Converts the agent's events to the program's: finds the identifier by the exchange's ID and puts
// the event into its channel. Runs under a first lane's lock, on the thread that makes progress.
// Work that needs verbs calls waits until the program takes the event (events.cc).
#include <memory>
#include <new>

#include "abi/rdmacm/id.h"
#include "base/exhaustion.h"
#include "runtime/log.h"

namespace verbena::rdmacm {
namespace {

using cm::EventKind;

bool is_request(const cm::Event& event) {
  return event.kind == EventKind::ConnectRequest || event.kind == EventKind::SidrRequest;
}

// After these events the agent may reuse the ID.
bool is_last(const cm::Event& event) {
  return event.kind == EventKind::Rejected || event.kind == EventKind::Unreachable ||
         event.kind == EventKind::TimewaitExit || event.kind == EventKind::SidrResponse;
}

struct Translation {
  unsigned kind = 0;
  int status = 0;
};

Translation translate(const cm::Event& event) {
  switch (event.kind) {
    case EventKind::ConnectRequest:
    case EventKind::SidrRequest:
      return {RDMA_CM_EVENT_CONNECT_REQUEST};
    case EventKind::ConnectResponse:
      return {RDMA_CM_EVENT_CONNECT_RESPONSE};
    case EventKind::Established:
      return {RDMA_CM_EVENT_ESTABLISHED};
    case EventKind::Rejected:
      return {RDMA_CM_EVENT_REJECTED, static_cast<int>(event.reason)};
    case EventKind::Unreachable:
      return {RDMA_CM_EVENT_UNREACHABLE, -event.error};
    case EventKind::Disconnected:
      return {RDMA_CM_EVENT_DISCONNECTED, -event.error};
    case EventKind::TimewaitExit:
      return {RDMA_CM_EVENT_TIMEWAIT_EXIT};
    case EventKind::SidrResponse:
      if (event.sidr_status == cm::SidrStatus::Success) return {RDMA_CM_EVENT_ESTABLISHED};
      return {RDMA_CM_EVENT_UNREACHABLE, static_cast<int>(event.sidr_status)};
  }
  return {};
}

// As in the kernel, the other events have no private data.
bool shows_private_data(EventKind kind) {
  return kind == EventKind::ConnectRequest || kind == EventKind::ConnectResponse ||
         kind == EventKind::Rejected || kind == EventKind::SidrRequest ||
         kind == EventKind::SidrResponse;
}

std::unique_ptr<Event> make_event(Id& about, const cm::Event& from) {
  const Translation what = translate(from);
  auto event = std::make_unique<Event>(about, what.kind, what.status);
  const auto data = from.private_data.view();
  const bool shown = shows_private_data(from.kind) && !data.empty();
  const void* kept = shown ? event->keep(data) : nullptr;
  const auto size = static_cast<uint8_t>(shown ? data.size() : 0);
  if (about.is_ud()) {
    event->param.ud.private_data = kept;
    event->param.ud.private_data_len = size;
    event->param.ud.qp_num = from.qpn.value();
    event->param.ud.qkey = from.qkey;
  } else {
    event->param.conn.private_data = kept;
    event->param.conn.private_data_len = size;
  }
  return event;
}

// Creates the new identifier now, so that it receives its events before the program takes the
// request.
void add_request(Device& device, Id& listener, const cm::Event& from) {
  auto child =
      std::make_unique<Id>(*listener.library, nullptr, nullptr, listener.ps, listener.qp_type);
  child->device = device.shared_from_this();
  child->state = State::Connect;
  child->exchange = from.id;
  child->exchanged = true;
  child->request_listener = from.listener;
  std::unique_ptr<Event> event = make_event(*child, from);
  event->owner = &listener;
  event->listen_id = &listener;
  Id*& known = device.exchanges[from.id];
  known = child.release();
  listener.post(std::move(event));
}

// Removes a request whose peer gave up before the program took it: the backlog no longer counts it,
// so its event must go too. Returns false if the program has the request.
bool withdraw(const Device& device, const Id& request) {
  const auto listening = device.listeners.find(request.request_listener);
  if (listening == device.listeners.end()) return false;
  Id& listener = *listening->second;
  EventList withdrawn;
  {
    const std::lock_guard lock(listener.mutex);
    from(listener.channel)->remove_if(withdrawn, [&](const Event& event) {
      return event.kind() == RDMA_CM_EVENT_CONNECT_REQUEST && event.id == &request;
    });
  }
  if (withdrawn.empty()) return false;
  delete &request;
  return true;
}

// Returns false if the exchange or listener is not known here yet. Changes nothing if memory runs
// out.
bool deliver(Device& device, const cm::Event& event) {
  if (is_request(event)) {
    const auto listener = device.listeners.find(event.listener);
    if (listener == device.listeners.end()) return false;
    add_request(device, *listener->second, event);
    return true;
  }
  const auto found = device.exchanges.find(event.id);
  if (found == device.exchanges.end()) return false;
  Id& id = *found->second;
  std::unique_ptr<Event> written = make_event(id, event);
  if (is_last(event)) {
    device.exchanges.erase(found);
    id.exchange = 0;
    if (id.request_listener != 0 && withdraw(device, id)) return true;
  }
  id.post(std::move(written));
  if (event.kind == EventKind::Disconnected) id.enter(State::Connect, State::Disconnect);
  return true;
}

// Events stay in the list if there is no memory for them.
void deliver_unrouted(Device& device) {
  for (auto event = device.unrouted.begin(); event != device.unrouted.end();) {
    event = deliver(device, *event) ? device.unrouted.erase(event) : event + 1;
  }
}

}  // namespace

bool Device::on_event(const cm::Event& event) noexcept {
  return try_allocating([&] {
    const std::lock_guard lock(mutex);
    if (!deliver(*this, event)) unrouted.push_back(event);
  });
}

// Notifies the identifiers that are bound to the device, including those that listen on it by a
// loopback address and those with a connection or request there. Wildcard listeners are not
// notified: they listen on other devices too.
void Device::on_removed() {
  try {
    const std::lock_guard lock(mutex);
    removed = true;
    std::unordered_set<Id*> affected = bound;
    for (const auto& [exchange, id] : exchanges) affected.insert(id);
    for (const auto& [listener, id] : listeners) {
      if (!id->source.is_any()) affected.insert(id);
    }
    for (Id* id : affected) id->post(RDMA_CM_EVENT_DEVICE_REMOVAL);
  } catch (const std::bad_alloc&) {
    runtime::log(runtime::LogLevel::Error,
                 "out of memory: the removal of a device is not reported");
  }
  library->follow_soon();
}

Status Device::add_bound(Id& id) {
  const std::lock_guard lock(mutex);
  if (removed) return Error{ENODEV, "the device's network interface is gone"};
  bound.insert(&id);
  return {};
}

void Device::forget_bound(Id& id) {
  const std::lock_guard lock(mutex);
  bound.erase(&id);
}

void Device::route_exchange(uint32_t exchange, Id& id) {
  const std::lock_guard lock(mutex);
  id.exchange = exchange;
  id.exchanged = true;
  exchanges[exchange] = &id;
  deliver_unrouted(*this);
}

void Device::route_listener(uint32_t listener, Id& id) {
  const std::lock_guard lock(mutex);
  listeners[listener] = &id;
  deliver_unrouted(*this);
  // The interface may have been removed since the identifier began to listen.
  if (removed && !id.source.is_any() && !bound.contains(&id)) id.post(RDMA_CM_EVENT_DEVICE_REMOVAL);
}

// Afterwards all earlier events of `id` are in its channel.
uint32_t Device::exchange_of(const Id& id) {
  const std::lock_guard lock(mutex);
  return id.exchange;
}

void Device::remove_exchange(uint32_t exchange, const Id& id) {
  const std::lock_guard lock(mutex);
  const auto found = exchanges.find(exchange);
  if (found != exchanges.end() && found->second == &id) exchanges.erase(found);
}

void Device::remove_listener(uint32_t listener, const Id& id) {
  const std::lock_guard lock(mutex);
  const auto found = listeners.find(listener);
  if (found != listeners.end() && found->second == &id) listeners.erase(found);
}

}  // namespace verbena::rdmacm
