// EpollSet: the rsockets and ordinary descriptors that repoll_ctl() collects for repoll_wait().
// Each wait is an rpoll() of the current members; a change wakes the waits in progress. The set is
// always level-triggered, regardless of the flags, as in the original library. The set's number is
// a descriptor, so that it differs from all others, but polling that descriptor has no meaning.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "rsocket/wakeup_fd.h"

namespace verbena::rsocket {

class EpollSet {
 public:
  // `flags` are those of epoll_create1().
  static Result<int> create(int flags);
  static std::shared_ptr<EpollSet> find(int number);  // null: no such set
  // Returns false if there is no such set.
  static bool close(int number);
  // Fork handlers. The child cannot use the parent's sets, but it can close them.
  static void lock_before_fork();
  static void unlock_after_fork();

  explicit EpollSet(int fd) : fd_(fd), process_(process_generation()) {}
  ~EpollSet();
  EpollSet(const EpollSet&) = delete;
  EpollSet& operator=(const EpollSet&) = delete;

  // Another thread of the parent may have been changing such a set at the fork: the child leaves it
  // alone, but for its descriptor.
  bool belongs_to_parent() const { return process_ != process_generation(); }

  Status control(int operation, int descriptor, const epoll_event* event);
  Result<int> wait(epoll_event* events, int capacity, Instant deadline);

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
  void wake_waits();
  class Wait;
  Snapshot begin_wait();
  bool end_wait(const Snapshot& seen);
  void disown_descriptor();
  void remove_closed(const std::vector<pollfd>& entries);

  // A semaphore: each change adds one count per wait in progress.
  const int fd_;
  const uint32_t process_;
  std::mutex mutex_;
  std::vector<Member> members_;
  uint64_t version_ = 0;  // number of changes
  uint64_t waits_ = 0;    // in progress
  size_t rotation_ =
      0;  // rotates the members, so that all are reported if the caller's array is short
  bool closed_ = false;
  bool owns_descriptor_ = true;  // false: the program closed it, and another set has the number
};

}  // namespace verbena::rsocket
