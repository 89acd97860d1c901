// Wakes a thread that sleeps in an rsocket call from another thread.
//
// A WakeupFd is a thread's own eventfd; the thread sleeps on it together with its other
// descriptors. Before it sleeps, it adds the WakeupFd to every socket that it waits for (Waiters).
// A thread that changes a socket signals all WakeupFds there. So it does not matter which of
// several waiting threads the kernel wakes first, or which one takes the completions: the others
// are signalled.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.h"

namespace verbena::rsocket {

class WakeupFd {
 public:
  // Created and opened at the first use.
  static Result<WakeupFd*> of_this_thread();
  WakeupFd() = default;
  ~WakeupFd();
  WakeupFd(const WakeupFd&) = delete;
  WakeupFd& operator=(const WakeupFd&) = delete;

  int fd() const { return fd_; }
  void signal();
  // Called by the owner when its descriptor is readable, before it checks the condition that it
  // waits for.
  void clear();

  // Errors: EMFILE, ENFILE, ENOMEM.
  Status open();

 private:
  int fd_ = -1;
  uint32_t process_ = 0;  // the process (counted in forks) that opened it; others must not use it
  std::atomic<bool> signalled_{false};
};

// The WakeupFds of the threads that wait for one socket. The socket's lock guards it.
class Waiters {
 public:
  struct Node {
    WakeupFd* wakeup = nullptr;
    bool is_added = false;
    Node* next = nullptr;
    Node* previous = nullptr;
  };

  void add(Node* node);
  void remove(Node* node);
  bool empty() const { return first_ == nullptr; }
  // Signals all except the calling thread's own.
  void signal_others() const;

 private:
  Node* first_ = nullptr;
};

// The number of forks between the first process and this one.
uint32_t process_generation();
void on_fork_in_child();

}  // namespace verbena::rsocket
