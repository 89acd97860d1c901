// The descriptor is an eventfd whose count is 1 while events wait and 0 otherwise.
#include "runtime/event_channel.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/exhaustion.h"
#include "os/no_cancel.h"

namespace verbena::runtime {

Result<EventChannel*> EventChannel::create() {
  const int fd = eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return Error{errno, "cannot make an event descriptor (too many open files?)"};
  return new EventChannel(fd);
}

bool EventChannel::reserve(size_t count) {
  const std::lock_guard lock(mutex_);
  return try_allocating([&] { events_.reserve(events_.size() + count); });
}

bool EventChannel::push(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (!events_.push(event)) return false;
  if (events_.size() == 1 && fd_.valid()) eventfd_write(fd(), 1);
  waker_.wake();
  return true;
}

void EventChannel::quiet_if_empty() {
  if (!events_.empty() || !fd_.valid()) return;
  eventfd_t value;
  eventfd_read(fd(), &value);  // the count is 1: never waits
}

int EventChannel::try_pop(Event* event, void (*taken)(const Event&)) {
  const os::NoCancel no_cancel;
  const std::lock_guard lock(mutex_);
  if (!fd_.valid()) return EBADF;
  if (!events_.pop(*event)) return EAGAIN;
  if (taken != nullptr) taken(*event);
  quiet_if_empty();
  return 0;
}

bool EventChannel::nonblocking() const { return (fcntl(fd(), F_GETFL) & O_NONBLOCK) != 0; }

int EventChannel::pop(Event* event, void (*taken)(const Event&)) {
  for (;;) {
    const uint32_t seen = waker_.seen();
    const int code = try_pop(event, taken);
    if (code != EAGAIN) return code;
    const int flags = fcntl(fd(), F_GETFL);
    if (flags < 0) return errno;
    if ((flags & O_NONBLOCK) != 0) return EAGAIN;
    if (const int error = waker_.sleep(seen); error != 0) return error;
  }
}

void EventChannel::forget(const void* object) {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return;
  events_.remove_if([&](const Event& e) { return e.object == object; });
  quiet_if_empty();
}

bool push_to_all(const Owner* first, int kind) {
  const auto for_all = [&](auto&& holds) {
    for (const Owner* owner = first; owner != nullptr; owner = owner->next) {
      if (owner->async_channel != nullptr && !holds(*owner)) return false;
    }
    return true;
  };
  size_t owners = 0;
  for (const Owner* owner = first; owner != nullptr; owner = owner->next) ++owners;
  // Owners of one context share its channel.
  return for_all([&](const Owner& owner) { return owner.async_channel->reserve(owners); }) &&
         for_all([&](const Owner& owner) {
           return owner.async_channel->push({kind, owner.object});
         });
}

}  // namespace verbena::runtime
