// EpollSet: the rsockets and ordinary descriptors that repoll_ctl() put together, for repoll_wait()
// to wait for. Each wait is an rpoll() of the set as it is then; a change wakes the waits that are
// under way. Level-triggered, whatever flags ask for, as in the original. The set's number is a
// descriptor, so that it collides with no other, but polling it tells nothing.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace verbena::rsocket {

class EpollSet {
 public:
  // `flags` as of epoll_create1().
  static Result<int> create(int flags);
  static std::shared_ptr<EpollSet> find(int number);  // null: no such set
  // False: no such set.
  static bool close(int number);
  // Around a fork. In the child the parent's sets are out of reach. Closing them still works.
  static void lock_before_fork();
  static void unlock_after_fork();
  static void disown_in_child();

  explicit EpollSet(int fd) : fd_(fd) {}
  ~EpollSet();
  EpollSet(const EpollSet&) = delete;
  EpollSet& operator=(const EpollSet&) = delete;

  Status control(int operation, int descriptor, const epoll_event* event);
  Result<int> wait(epoll_event* events, int room, Instant deadline);

 private:
  struct Member {
    int descriptor;
    epoll_event event;
  };
  struct Snapshot {
    std::vector<Member> members;
    uint64_t version;
  };

  std::vector<Member>::iterator position_of(int descriptor);
  Status change(int operation, int descriptor, const epoll_event* event);
  void tell_waits();
  class Wait;
  Snapshot begin_wait();
  bool end_wait(const Snapshot& seen);
  void disown_descriptor();
  void remove_closed(const std::vector<pollfd>& entries);

  // A semaphore: for each wait under way and each change, one.
  const int fd_;
  std::mutex mutex_;
  std::vector<Member> members_;
  uint64_t version_ = 0;  // changes so far
  uint64_t waits_ = 0;    // under way
  size_t turn_ = 0;       // whose turn it is to be told first, where there is no room for all
  bool closed_ = false;
  bool owns_descriptor_ = true;  // false: the program closed it, and the number is another set's
};

}  // namespace verbena::rsocket
