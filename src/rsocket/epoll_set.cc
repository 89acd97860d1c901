// EpollSet: see epoll_set.h.
#include "rsocket/epoll_set.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <unordered_map>
#include <utility>

#include "base/exhaustion.h"
#include "rsocket/poll.h"

namespace verbena::rsocket {

namespace {

struct Sets {
  std::mutex mutex;
  std::unordered_map<int, std::shared_ptr<EpollSet>> by_number;
};

// Never destroyed: threads may wait on a set while the process ends.
Sets* const sets = new Sets;

// The bits of epoll and poll are the same.
static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLPRI == POLLPRI &&
              EPOLLERR == POLLERR && EPOLLHUP == POLLHUP);
constexpr uint32_t kPollEvents = EPOLLIN | EPOLLOUT | EPOLLPRI;

}  // namespace

Result<int> EpollSet::create(int flags) {
  if ((flags & ~(EPOLL_CLOEXEC | O_NONBLOCK)) != 0) return Error{EINVAL};
  const int fd =
      eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK | ((flags & EPOLL_CLOEXEC) != 0 ? EFD_CLOEXEC : 0));
  if (fd < 0) return Error{errno};
  auto set = std::make_shared<EpollSet>(fd);
  const std::lock_guard lock(sets->mutex);
  std::shared_ptr<EpollSet>& entry = sets->by_number[fd];
  // The program closed the number with close().
  if (entry != nullptr && !entry->belongs_to_parent()) entry->disown_descriptor();
  entry = std::move(set);
  return fd;
}

std::shared_ptr<EpollSet> EpollSet::find(int number) {
  const std::lock_guard lock(sets->mutex);
  const auto found = sets->by_number.find(number);
  const bool usable = found != sets->by_number.end() && !found->second->belongs_to_parent();
  return usable ? found->second : nullptr;
}

bool EpollSet::close(int number) {
  std::shared_ptr<EpollSet> set;
  {
    const std::lock_guard lock(sets->mutex);
    auto node = sets->by_number.extract(number);
    if (node.empty()) return false;
    set = std::move(node.mapped());
  }
  if (set->belongs_to_parent()) return ::close(number) == 0;
  const std::lock_guard lock(set->mutex_);
  set->closed_ = true;
  set->wake_waits();
  return true;
}

void EpollSet::lock_before_fork() { sets->mutex.lock(); }
void EpollSet::unlock_after_fork() { sets->mutex.unlock(); }

EpollSet::~EpollSet() {
  if (owns_descriptor_ && !belongs_to_parent()) ::close(fd_);
}

void EpollSet::disown_descriptor() {
  const std::lock_guard lock(mutex_);
  owns_descriptor_ = false;
}

std::vector<EpollSet::Member>::iterator EpollSet::position_of(int descriptor) {
  return std::ranges::find(members_, descriptor, &Member::descriptor);
}

// Requires the lock.
void EpollSet::wake_waits() {
  ++version_;
  if (waits_ > 0) eventfd_write(fd_, waits_);
}

Status EpollSet::control(int operation, int descriptor, const epoll_event* event) {
  if (descriptor == fd_) return Error{EINVAL};
  if (operation != EPOLL_CTL_DEL && event == nullptr) return Error{EFAULT};
  const std::lock_guard lock(mutex_);
  const Status changed = change(operation, descriptor, event);
  if (changed.ok()) wake_waits();
  return changed;
}

Status EpollSet::change(int operation, int descriptor, const epoll_event* event) {
  const auto at = position_of(descriptor);
  const bool known = at != members_.end();
  switch (operation) {
    case EPOLL_CTL_ADD:
      if (fcntl(descriptor, F_GETFD) < 0) return Error{EBADF};
      if (known) return Error{EEXIST};
      members_.push_back({descriptor, *event});
      return {};
    case EPOLL_CTL_MOD:
      if (!known) return Error{ENOENT};
      at->event = *event;
      return {};
    case EPOLL_CTL_DEL:
      if (!known) return Error{ENOENT};
      members_.erase(at);
      return {};
    default:
      return Error{EINVAL};
  }
}

EpollSet::Snapshot EpollSet::begin_wait() {
  const std::lock_guard lock(mutex_);
  Snapshot now{members_, version_};
  if (!now.members.empty()) {
    const auto first = static_cast<std::ptrdiff_t>(rotation_++ % now.members.size());
    std::rotate(now.members.begin(), now.members.begin() + first, now.members.end());
  }
  ++waits_;
  return now;
}

// Consumes the eventfd counts that the changes since the snapshot added for this wait. Returns
// false if the set is closed.
bool EpollSet::end_wait(const Snapshot& seen) {
  const std::lock_guard lock(mutex_);
  --waits_;
  for (uint64_t i = seen.version; i != version_; ++i) {
    eventfd_t one;
    eventfd_read(fd_, &one);
  }
  return !closed_;
}

// epoll, too, removes descriptors that were closed.
void EpollSet::remove_closed(const std::vector<pollfd>& entries) {
  const std::lock_guard lock(mutex_);
  for (const pollfd& entry : entries) {
    if ((entry.revents & POLLNVAL) == 0) continue;
    if (const auto at = position_of(entry.fd); at != members_.end()) members_.erase(at);
  }
}

// Counts a wait for the lifetime of the object.
class EpollSet::Wait {
 public:
  explicit Wait(EpollSet& set) : set_(set), seen_(set.begin_wait()) {}
  ~Wait() { end(); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  const std::vector<Member>& members() const { return seen_.members; }
  // Returns false if the set is closed.
  bool end() {
    if (!std::exchange(ended_, true)) open_ = set_.end_wait(seen_);
    return open_;
  }

 private:
  EpollSet& set_;
  const Snapshot seen_;
  bool ended_ = false;
  bool open_ = false;
};

Result<int> EpollSet::wait(epoll_event* events, int capacity, Instant deadline) {
  if (capacity <= 0) return Error{EINVAL};
  if (events == nullptr) return Error{EFAULT};
  std::vector<pollfd> entries;
  for (;;) {
    Wait now(*this);
    entries.assign(1, {fd_, POLLIN, 0});
    for (const Member& member : now.members()) {
      entries.push_back(
          {member.descriptor, static_cast<short>(member.event.events & kPollEvents), 0});
    }
    auto ready = poll_all(entries.data(), entries.size(), deadline);
    if (!now.end()) return Error{EBADF};
    if (!ready.ok() || ready.value() == 0) return ready;
    int count = 0;
    for (size_t i = 1; i < entries.size() && count < capacity; ++i) {
      const auto seen = static_cast<uint32_t>(entries[i].revents & ~POLLNVAL);
      if (seen != 0) events[count++] = {seen, now.members()[i - 1].event.data};
    }
    remove_closed(entries);
    if (count > 0) return count;
  }
}

}  // namespace verbena::rsocket
