// Listening on the device of an address, or on every device, including devices that appear later.
// For the latter, one thread per process sleeps until the kernel reports a change of links or
// addresses.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "abi/rdmacm/id.h"
#include "runtime/log.h"
#include "runtime/start_thread.h"

namespace verbena::rdmacm {
namespace {

// The objects that the thread uses; all of them outlive it.
struct MonitorContext {
  Library* library;
  runtime::InterfaceMonitor* monitor;
  int wake_fd;
};

void* monitor_interfaces(void* argument) {
  pthread_setname_np(pthread_self(), "verbena-links");
  const std::unique_ptr<MonitorContext> context(static_cast<MonitorContext*>(argument));
  pollfd wait[2] = {{context->monitor->fd(), POLLIN, 0}, {context->wake_fd, POLLIN, 0}};
  for (;;) {
    if (poll(wait, 2, -1) < 0) continue;
    eventfd_t count = 0;
    const bool woken = eventfd_read(context->wake_fd, &count) == 0;
    const bool changed = context->monitor->drain();
    if (!woken && !changed) continue;
    try {
      context->library->follow_interfaces();
    } catch (const std::bad_alloc&) {
      runtime::log(runtime::LogLevel::Error, "out of memory: not listening on a new interface");
    }
  }
}

bool listens_on(const Id& id, const Device& device) {
  return std::ranges::any_of(id.listening,
                             [&](const Id::Listening& at) { return at.device.get() == &device; });
}

// Afterwards the agent reports no new request.
void stop(Id& id, const Id::Listening& at) {
  (void)at.device->manager->stop_listening(at.listener);
  at.device->remove_listener(at.listener, id);
}

void leave_removed(Id& id) {
  std::erase_if(id.listening, [&](const Id::Listening& at) {
    if (!at.device->removed) return false;
    stop(id, at);
    return true;
  });
}

// The device was just listed, but has lost its address or was removed.
bool is_transient(const Error& error) {
  return error.code == EADDRNOTAVAIL || error.code == ENODEV || error.code == ENXIO;
}

}  // namespace

Status listen_on(Id& id, Device& device) {
  Result<uint32_t> listener = device.manager->listen(id.listens_for);
  if (!listener.ok()) return listener.error();
  id.listening.push_back({device.shared_from_this(), listener.value()});
  device.route_listener(listener.value(), id);
  return {};
}

void stop_listening(Id& id) {
  if (id.state != State::Listen) return;
  if (id.source.is_any()) return id.library->stop_listening_everywhere(id);
  for (const Id::Listening& at : id.listening) stop(id, at);
  id.listening.clear();
}

// If no descriptor or thread is available, only the present devices are listened on.
void Library::start_following() {
  if (monitor_ != nullptr) return;
  auto monitor = std::make_unique<runtime::InterfaceMonitor>();
  if (monitor->fd() < 0) return;
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) return;
  auto context = std::make_unique<MonitorContext>(MonitorContext{this, monitor.get(), wake_fd});
  pthread_t thread{};
  if (runtime::start_thread(thread, &monitor_interfaces, context.get(), runtime::Ends::Detached) !=
      0) {
    close(wake_fd);
    return;
  }
  (void)context.release();
  monitor_ = std::move(monitor);
  follow_fd_ = wake_fd;
}

void Library::follow_soon() {
  if (const int fd = follow_fd_; fd >= 0) eventfd_write(fd, 1);
}

Status Library::listen_everywhere(Id& id) {
  const std::lock_guard lock(wildcards_mutex_);
  start_following();
  const Status opened = open_devices();  // there may be new devices since the bind
  if (!opened.ok()) return opened;
  for (const auto& device : devices()) {
    const Status status = listen_on(id, *device);
    if (!status.ok() && !is_transient(status.error())) return status;
  }
  wildcards_.push_back(&id);
  return {};
}

void Library::stop_listening_everywhere(Id& id) {
  const std::lock_guard lock(wildcards_mutex_);
  for (const Id::Listening& at : id.listening) stop(id, at);
  id.listening.clear();
  std::erase(wildcards_, &id);
}

void Library::follow_interfaces() {
  const std::lock_guard lock(wildcards_mutex_);
  for (Id* id : wildcards_) leave_removed(*id);
  if (!wildcards_.empty()) (void)open_devices();
  for (const auto& device : devices()) {
    for (Id* id : wildcards_) {
      if (listens_on(*id, *device)) continue;
      const Status status = listen_on(*id, *device);
      if (!status.ok() && !is_transient(status.error())) {
        runtime::log(runtime::LogLevel::Warning, "%s: not listening on port %u there: %s",
                     ibv_get_device_name(device->device), id->source.port, status.error().why);
      }
    }
  }
}

}  // namespace verbena::rdmacm
