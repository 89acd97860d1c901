// rpoll and rselect: see poll.h.
//
// They check all descriptors. If none is ready, they busy-poll for a short time. Then they add the
// thread's WakeupFd to every rsocket, arm the completion queues and sleep in one ppoll() on the
// WakeupFd, the completion channels and the ordinary descriptors.
#include "rsocket/poll.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include "rsocket/clock.h"
#include "rsocket/per_thread.h"
#include "rsocket/sleep.h"
#include "rsocket/socket_table.h"
#include "rsocket/spin.h"
#include "rsocket/wakeup_fd.h"

namespace verbena::rsocket {

namespace {

// Memory that a thread reuses from call to call.
struct Scratch {
  struct Watched {
    pollfd* entry;
    SocketTable::Ref socket;
    Waiters::Node node;
    size_t descriptors = 0;  // how many descriptors of its own it sleeps on
  };
  std::vector<Watched> sockets;
  std::vector<pollfd*> plain;
  std::vector<pollfd> sleeping;
};

class Polling {
 public:
  Polling(pollfd* entries, nfds_t count) {
    scratch_.sockets.clear();
    scratch_.plain.clear();
    for (nfds_t i = 0; i < count; ++i) {
      entries[i].revents = 0;
      if (auto socket = SocketTable::instance().find(entries[i].fd)) {
        scratch_.sockets.push_back({&entries[i], std::move(socket), {}, 0});
      } else if (SocketTable::instance().is_closing(entries[i].fd)) {
        entries[i].revents = POLLNVAL;
        ++closing_;
      } else if (entries[i].fd >= 0) {
        scratch_.plain.push_back(&entries[i]);
      }
    }
  }
  ~Polling() {
    for (Scratch::Watched& watched : scratch_.sockets) {
      if (watched.node.is_added) watched.socket->unregister(&watched.node);
    }
    scratch_.sockets.clear();  // releases the references
  }
  Polling(const Polling&) = delete;
  Polling& operator=(const Polling&) = delete;

  bool any_socket() const { return !scratch_.sockets.empty(); }

  Result<int> check() {
    int ready = closing_;
    for (Scratch::Watched& watched : scratch_.sockets) {
      watched.entry->revents = watched.socket->poll_now(watched.entry->events);
      ready += watched.entry->revents != 0;
    }
    const auto plain = poll_plain();
    if (plain < 0) return Error{errno};
    return ready + plain;
  }

  Result<int> busy_poll(Instant deadline) {
    Result<int> ready = 0;
    spin(SpinBudget::of_this_thread(), deadline, [&](Duration waited) {
      pause_between_checks(waited);
      ready = check();
      return !ready.ok() || ready.value() > 0;
    });
    return ready;
  }

  Result<int> sleep(Instant deadline) {
    auto wakeup = WakeupFd::of_this_thread();
    if (!wakeup.ok()) return wakeup.error();
    for (;;) {
      if (const int ready = register_everywhere(wakeup.value())) return ready;
      const Status slept = sleep_on(scratch_.sleeping.data(), scratch_.sleeping.size(), deadline);
      if (slept.ok() && scratch_.sleeping[0].revents) wakeup.value()->clear();
      const int ready = check_after_sleep();
      if (ready > 0) return ready;
      if (slept.ok()) continue;
      if (slept.error().code == EAGAIN) return 0;
      return slept.error();
    }
  }

 private:
  int poll_plain() {
    std::vector<pollfd*>& plain = scratch_.plain;
    if (plain.empty()) return 0;
    std::vector<pollfd>& copies = scratch_.sleeping;
    copies.clear();
    for (const pollfd* entry : plain) copies.push_back(*entry);
    const int ready = ::poll(copies.data(), copies.size(), 0);
    for (size_t i = 0; i < plain.size(); ++i) plain[i]->revents = copies[i].revents;
    return ready;
  }

  // Collects the descriptors to sleep on: the WakeupFd, the ordinary descriptors, those of the
  // sockets. Returns the number of ready entries; their revents are set.
  int register_everywhere(WakeupFd* wakeup) {
    std::vector<pollfd>& sleeping = scratch_.sleeping;
    sleeping.clear();
    sleeping.push_back({wakeup->fd(), POLLIN, 0});
    for (const pollfd* entry : scratch_.plain) sleeping.push_back({entry->fd, entry->events, 0});
    int ready = 0;
    for (Scratch::Watched& watched : scratch_.sockets) {
      if (!watched.node.is_added)
        watched.node.wakeup = wakeup;  // otherwise other threads may read it
      const size_t before = sleeping.size();
      watched.entry->revents =
          watched.socket->poll_and_register(watched.entry->events, &watched.node, &sleeping);
      watched.descriptors = sleeping.size() - before;
      ready += watched.entry->revents != 0;
    }
    return ready;
  }

  int check_after_sleep() {
    const pollfd* at = scratch_.sleeping.data() + 1;
    int ready = 0;
    for (pollfd* entry : scratch_.plain) {
      entry->revents = (at++)->revents;
      ready += entry->revents != 0;
    }
    for (Scratch::Watched& watched : scratch_.sockets) {
      watched.entry->revents = watched.socket->poll_woken(watched.entry->events);
      ready += watched.entry->revents != 0;
    }
    return ready;
  }

  Scratch& scratch_ = PerThread<Scratch>::get();
  int closing_ = 0;  // sockets that another thread is closing
};

constexpr short kReadEvents = POLLIN | POLLRDNORM | POLLHUP | POLLERR;
constexpr short kWriteEvents = POLLOUT | POLLWRNORM | POLLERR;

}  // namespace

Result<int> poll_all(pollfd* descriptors, nfds_t count, Instant deadline) {
  if (count > 0 && !descriptors) return Error{EFAULT};
  Polling polling(descriptors, count);
  auto ready = polling.check();
  if (!ready.ok() || ready.value() > 0) return ready;
  if (deadline != kNever && now() >= deadline) return 0;
  if (polling.any_socket()) {
    ready = polling.busy_poll(deadline);
    if (!ready.ok() || ready.value() > 0) return ready;
  }
  return polling.sleep(deadline);
}

Result<int> select_all(int count, fd_set* read, fd_set* write, fd_set* except, Instant deadline) {
  if (count < 0 || count > FD_SETSIZE) return Error{EINVAL};
  std::vector<pollfd> entries;
  for (int fd = 0; fd < count; ++fd) {
    int events = 0;
    if (read && FD_ISSET(fd, read)) events |= POLLIN;
    if (write && FD_ISSET(fd, write)) events |= POLLOUT;
    if (except && FD_ISSET(fd, except)) events |= POLLPRI;
    if (events) entries.push_back({fd, static_cast<short>(events), 0});
  }
  auto ready = poll_all(entries.data(), entries.size(), deadline);
  if (!ready.ok()) return ready;
  const auto invalid = [](const pollfd& entry) { return (entry.revents & POLLNVAL) != 0; };
  if (std::any_of(entries.begin(), entries.end(), invalid)) return Error{EBADF};

  for (fd_set* set : {read, write, except}) {
    if (set) FD_ZERO(set);
  }
  int bits = 0;
  const auto add = [&](const pollfd& entry, short requested, short reported, fd_set* set) {
    if (!(entry.events & requested) || !(entry.revents & reported)) return;
    FD_SET(entry.fd, set);
    ++bits;
  };
  for (const pollfd& entry : entries) {
    add(entry, POLLIN, kReadEvents, read);
    add(entry, POLLOUT, kWriteEvents, write);
    add(entry, POLLPRI, POLLPRI, except);
  }
  return bits;
}

}  // namespace verbena::rsocket
