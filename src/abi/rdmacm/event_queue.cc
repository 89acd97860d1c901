// Event channels. The descriptor of a channel is an eventfd; its count is 1 while events wait,
// otherwise 0.
#include "abi/rdmacm/event_queue.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "abi/rdmacm/id.h"
#include "abi/verbs/c_enum.h"

namespace verbena::rdmacm {

Event::Event(Id& about, unsigned kind, int outcome) : rdma_cm_event(), owner(&about) {
  id = &about;
  status = outcome;
  set_kind(kind);
}

unsigned Event::kind() const { return abi::number_of(event); }

void Event::set_kind(unsigned kind) { std::memcpy(&event, &kind, sizeof event); }

const void* Event::keep(std::span<const std::byte> data) {
  std::copy_n(data.begin(), std::min(data.size(), private_data.size()), private_data.begin());
  return private_data.data();
}

EventList::~EventList() {
  while (!empty()) pop();
}

void EventList::push(std::unique_ptr<Event> event) {
  Event* const added = event.release();
  added->next = nullptr;
  (empty() ? first_ : last_->next) = added;
  last_ = added;
}

std::unique_ptr<Event> EventList::pop() {
  Event* const taken = first_;
  first_ = taken->next;
  return std::unique_ptr<Event>(taken);
}

void EventList::append(EventList& from) {
  if (from.empty()) return;
  (empty() ? first_ : last_->next) = std::exchange(from.first_, nullptr);
  last_ = from.last_;
}

Channel::Channel(Library& in, int descriptor) : rdma_event_channel{descriptor}, library(&in) {}

void Channel::destroy(Channel* channel) {
  if (belongs_to_parent(
          *channel)) {  // another thread of the parent may have held the lock at the fork
    ::close(channel->fd);
    return;
  }
  bool last = false;
  {
    const std::lock_guard lock(channel->mutex_);
    ::close(channel->fd);
    channel->destroyed_ = true;
    channel->waker_.wake();
    last = channel->waiting_ == 0;
  }
  if (last) delete channel;
}

Result<Channel*> Channel::create(Library& library) {
  const int fd = eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return Error{errno, "cannot create an event descriptor (too many open files?)"};
  return new Channel(library, fd);
}

void Channel::push(std::unique_ptr<Event> event) {
  const std::lock_guard lock(mutex_);
  const bool was_empty = events_.empty();
  events_.push(std::move(event));
  if (was_empty) eventfd_write(fd, 1);
  waker_.wake();
}

void Channel::append(EventList& events) {
  const std::lock_guard lock(mutex_);
  if (events.empty()) return;
  const bool was_empty = events_.empty();
  events_.append(events);
  if (was_empty) eventfd_write(fd, 1);
  waker_.wake();
}

void Channel::quiet_if_empty() {
  if (!events_.empty()) return;
  eventfd_t value;
  eventfd_read(fd, &value);  // the count is 1, so this never blocks
}

bool Channel::pop(std::unique_ptr<Event>& event, Wait& wait) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(wait.counted, false)) --waiting_;
  if (destroyed_ || events_.empty()) {
    wait = {true, waker_.seen()};
    ++waiting_;
    return false;
  }
  event = events_.pop();
  event->owner->events_taken.fetch_add(1, std::memory_order_relaxed);
  if (event->group != nullptr) ++event->group->events_taken;
  quiet_if_empty();
  return true;
}

int Channel::sleep(const Wait& wait) {
  while (destroyed_) pause();
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return errno;
  if ((flags & O_NONBLOCK) != 0) return EAGAIN;
  return waker_.sleep(wait.seen);
}

void Channel::stop_waiting() {
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    last = --waiting_ == 0 && destroyed_;
  }
  if (last) delete this;
}

}  // namespace verbena::rdmacm
